"""A process that has seen nothing but `import loopwright.components`: what does it load?"""

import json
import sys
from pathlib import Path

import keras
import numpy as np

import loopwright.components

if __name__ == "__main__":
    found = {}
    with np.load(Path(sys.argv[1]) / "data.npz") as data:
        x, y = data["x"], data["y"]
    for path in sorted(Path(sys.argv[1]).glob("*.keras")):
        model = keras.models.load_model(path)
        found[path.stem] = {
            "predictions": np.asarray(model(x)).ravel().tolist(),
            "config": model.get_config(),
            "compiled": model.get_compile_config() if model.compiled else {},
            "scores": model.evaluate(x, y, verbose=0, return_dict=True) if model.compiled else {},
        }
    print(loopwright.components.__name__)
    print(json.dumps(found))
