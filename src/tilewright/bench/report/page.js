// The switch between the light and the dark theme. Without a choice the page follows the system.
const root = document.documentElement, button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const show = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
const choose = (theme) => {
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  show();
};
button.addEventListener("click", () => {
  choose(dark() ? "light" : "dark");
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* no storage: it holds until the page is closed */ }
});
system.addEventListener("change", show);
try { choose(localStorage.getItem("theme")); } catch { show(); }
