"""The models that come with the package, and a matrix product: what README.md shows."""

import numpy as np

import tilewright as tw

poet = tw.load("poet")  # or a directory, as transformers saves it, or the course's file; runs on a GPU if there is one
for output in poet.generate(["To be, or not"], tw.SamplingParams(max_tokens=32, temperature=0.8, top_p=0.95, seed=1)):
    print(output.outputs[0].text)  # in the order of the prompts, which are read as they are needed

critic = tw.load("critic")
print(critic.classify(["A warm, funny film.", "Dull."]))  # [{"label", "score", "logits"}, ...]

portraits = tw.load("portraits")
z = np.random.default_rng(1).standard_normal((8, 100))
print(portraits.generate(z).shape)  # (8, 64, 64, 3), from -1 to 1

volume = np.random.default_rng(2).random((32, 64, 64), np.float32)
print(tw.ndimage.gaussian_filter(volume, 2.0).std())  # scipy.ndimage's names and results

a, b = volume[0], volume[1]
with tw.using(matmul="cpu.blocked"), tw.threads(1):  # any rung, on purpose
    print(np.abs(tw.matmul(a, b, activation="relu") - a @ b).max())  # NumPy arrays, or anything that speaks DLPack
