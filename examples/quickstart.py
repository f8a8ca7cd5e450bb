"""The models that come with the package, and a matrix product: what README.md shows."""

import numpy as np

import tilewright as tw

poet = tw.load("poet")  # or a directory; on a GPU if there is one
for answer in poet.generate(["My lord,"], tw.SamplingParams(max_tokens=32, temperature=0.8, seed=1)):
    print(answer.outputs[0].text)
print(tw.load("critic").classify(["A warm, funny film.", "Dull."]))  # label, score, logits of each
print(tw.load("portraits").generate(np.zeros((8, 100))).shape)  # (8, 64, 64, 3), from -1 to 1
volume = np.random.default_rng(2).random((32, 64, 64), np.float32)
print(tw.ndimage.gaussian_filter(volume, 2.0).std())  # scipy's names; its bits in float64
with tw.using(matmul="cpu.blocked"), tw.threads(1):  # any kernel of the ladder
    print(np.abs(tw.matmul(volume[0], volume[1]) - volume[0] @ volume[1]).max())
