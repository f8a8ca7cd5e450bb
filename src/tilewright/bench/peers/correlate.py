"""scipy.ndimage for correlate. It also sums in float64 and writes float32."""

from importlib.util import find_spec

import numpy as np

from tilewright.bench.measure import Call


def cpu(case, inputs: dict) -> dict[str, Call]:
    """scipy's function for the form: `uniform_filter1d` for means, `correlate1d` for lines, otherwise `correlate`."""
    if not find_spec("scipy"):
        return {}
    from scipy import ndimage

    x, weights, axis = inputs["x"], inputs["weights"], case.axis
    out, border = np.empty(x.shape, np.float32), {"mode": inputs["mode"], "cval": inputs["cval"]}
    if case.form == "dense":
        return {"scipy": lambda: ndimage.correlate(x, weights, output=out, origin=case.origins, **border)}
    border["origin"] = case.origins[axis]
    if case.form == "mean":
        return {"scipy": lambda: ndimage.uniform_filter1d(x, weights.size, axis, output=out, **border)}
    return {"scipy": lambda: ndimage.correlate1d(x, weights.ravel(), axis, output=out, **border)}
