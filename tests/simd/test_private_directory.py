"""The directory of compiled kernels: who may change it, what is read from it, what a killed writer leaves."""

import fcntl
import os
import stat

import pytest

from tilewright.errors import ResourceError
from tilewright.simd.private_directory import PrivateDirectory, UnsafeDirectoryError

NAME = "f.kernel"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def folder(tmp_path):
    directory = PrivateDirectory(tmp_path / "a" / "b")
    yield directory
    directory.close()


def test_it_is_made_for_this_user_alone(folder, tmp_path):
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    folder.write(NAME, b"12")
    assert folder.read(NAME, 2) == b"12" and folder.read(NAME, 1) is None
    assert stat.S_IMODE((tmp_path / "a" / "b" / NAME).stat().st_mode) == 0o600
    with pytest.raises(FileNotFoundError):
        PrivateDirectory(tmp_path / "c" / "d", make=False)
    assert not (tmp_path / "c").exists()


def test_each_directory_on_the_way_counts(tmp_path):
    PrivateDirectory(tmp_path / "a" / "b").close()
    for mode, safe in ((0o755, True), (0o1777, True), (0o1770, True), (0o777, False), (0o702, False)):
        (tmp_path / "a").chmod(mode)
        if safe:
            PrivateDirectory(tmp_path / "a" / "b").close()
            continue
        with pytest.raises(UnsafeDirectoryError, match=rf"others may write to {tmp_path}/a, on its path.*{mode:04o}"):
            PrivateDirectory(tmp_path / "a" / "b")
    (tmp_path / "a").chmod(0o755)
    (tmp_path / "a" / "b").chmod(0o1777)  # sticky is for directories above
    with pytest.raises(UnsafeDirectoryError, match=r"others may write to it \(mode 1777\)"):
        PrivateDirectory(tmp_path / "a" / "b")


def test_a_link_on_the_way_leads_where_the_rules_hold_too(tmp_path):
    (tmp_path / "safe").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "safe" / "back").symlink_to("../safe")
    for target, safe in (("safe", True), (f"{tmp_path}/./safe/back/../safe", True), ("open", False), ("loop", None)):
        (tmp_path / "loop").unlink(missing_ok=True)
        (tmp_path / "loop").symlink_to(target)
        if safe:
            PrivateDirectory(tmp_path / "loop" / "b").close()
            assert (tmp_path / "safe" / "b").is_dir()
            continue
        with pytest.raises(ResourceError if safe is False else OSError, match=r"others may write|symbolic links"):
            PrivateDirectory(tmp_path / "loop" / "b")


def test_a_group_that_is_not_this_users_own_may_not_write_on_the_way(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from tilewright.simd import private_directory as module

    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o770)
    gid = (tmp_path / "a").stat().st_gid
    user = SimpleNamespace(pw_gid=gid, pw_name="ada")
    monkeypatch.setattr(module.pwd, "getpwuid", lambda uid: user)
    for name, members, safe in (("ada", [], True), ("ada", ["ada"], True), ("ada", ["eve"], False), ("lab", [], False)):
        group = SimpleNamespace(gr_name=name, gr_mem=members)
        monkeypatch.setattr(module.grp, "getgrgid", lambda gid, group=group: group)
        if safe:
            PrivateDirectory(tmp_path / "a" / "b").close()
        else:
            with pytest.raises(UnsafeDirectoryError, match="others may write"):
                PrivateDirectory(tmp_path / "a" / "b")


def exchanged(path):
    path.rename(path.with_name("earlier"))
    path.mkdir(mode=0o700)
    (path / NAME).write_bytes(b"foreign")


def test_an_open_directory_is_not_looked_up_again(folder, tmp_path):
    folder.write(NAME, b"own")
    exchanged(tmp_path / "a" / "b")
    assert folder.read(NAME, 100) == b"own" and folder.names() == [NAME]
    folder.write(NAME, b"new")
    assert (tmp_path / "a" / "b" / NAME).read_bytes() == b"foreign"
    assert (tmp_path / "a" / "earlier" / NAME).read_bytes() == b"new"


def test_a_link_in_place_of_a_directory_between_its_check_and_its_opening(folder, tmp_path, monkeypatch):
    """The other user exchanges it after the check has found a directory: the link is not followed."""
    from tilewright.simd import private_directory as module

    (tmp_path / "other").mkdir(mode=0o700)
    checked = module._link

    def check_and_exchange(name, *rest):
        found = checked(name, *rest)
        if name == "b":
            (tmp_path / "a" / "b").rename(tmp_path / "a" / "earlier")
            (tmp_path / "a" / "b").symlink_to(tmp_path / "other")
        return found

    monkeypatch.setattr(module, "_link", check_and_exchange)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        PrivateDirectory(tmp_path / "a" / "b", make=False)


def foreign(path):
    path.write_bytes(b"foreign")
    os.chown(path, 12345, 12345)


def linked(path):
    path.with_name("other").write_bytes(b"foreign")
    path.symlink_to("other")


def second_name(path):
    path.with_name("other").write_bytes(b"foreign")
    os.link(path.with_name("other"), path)


def writable(path):
    path.write_bytes(b"foreign")
    path.chmod(0o620)


def nonempty(path):
    path.mkdir()
    (path / "x").write_bytes(b"")


PLANTED = {
    "a link": linked,
    "a second name": second_name,
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a directory with a file": nonempty,
    "others may write": writable,
    "too large": lambda path: path.write_bytes(bytes(101)),
    "of another user": foreign,
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_root if "user" in name else ()) for name in PLANTED])
def test_nothing_but_a_plain_file_of_this_user_is_read_and_it_is_replaced(folder, tmp_path, name):
    PLANTED[name](tmp_path / "a" / "b" / NAME)
    assert folder.read(NAME, 100) is None
    folder.write(NAME, b"own")
    assert folder.read(NAME, 100) == b"own"
    kept = [path.name for path in (tmp_path / "a" / "b").glob(f"{NAME}.old-*")]
    assert len(kept) == (name == "a directory with a file"), "what it holds may be someone's work"


def test_what_killed_writers_leave_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.mkdir(mode=0o700)
    for name in (".new-abandoned", ".new-0123456789abcdef", ".new-at-work", "kept"):
        (path / name).write_bytes(b"half")
    (path / ".new-directory").mkdir()
    os.mkfifo(path / ".new-pipe")
    with open(path / ".new-at-work", "rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        folder = PrivateDirectory(path)
        folder.write(NAME, b"own")
        folder.close()
    assert sorted(p.name for p in path.iterdir()) == [".new-at-work", ".new-directory", NAME, "kept"]


def test_a_name_that_was_removed_before_it_was_locked_is_not_used(folder, monkeypatch):
    from tilewright.simd import private_directory as module

    def late(fd, operation):
        monkeypatch.undo()
        (name,) = folder.names()
        os.unlink(name, dir_fd=folder.fd)

    folder._sweep()
    folder._swept = True
    monkeypatch.setattr(module.fcntl, "flock", late)
    folder.write(NAME, b"own")
    assert folder.names() == [NAME] and folder.read(NAME, 3) == b"own"


def test_a_write_that_fails_leaves_nothing(folder, monkeypatch):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write(NAME, b"own")
    assert folder.names() == []


def test_a_directory_that_was_removed_or_opened_up_is_noticed(folder, tmp_path):
    assert folder.check()
    (tmp_path / "a" / "b").chmod(0o777)
    with pytest.raises(UnsafeDirectoryError):
        folder.check()
    (tmp_path / "a" / "b").chmod(0o700)
    (tmp_path / "a" / "b").rmdir()
    assert not folder.check()


@needs_root
def test_owners(tmp_path):
    """Root's directories are as safe as this user's; another user's directory is not, anywhere on the path."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        os.chown(path, 12345, 12345)
        with pytest.raises(UnsafeDirectoryError, match="belongs to user 12345, and this process is user 0"):
            PrivateDirectory(tmp_path / "a" / "b")
        os.chown(path, 0, 0)
    os.symlink(tmp_path / "a", tmp_path / "link")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(UnsafeDirectoryError, match="is a link of user 12345"):
        PrivateDirectory(tmp_path / "link" / "b")
