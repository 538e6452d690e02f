"""Twenty trainers, one after the other, leave nothing behind."""

from tests.processes import run_code

MEGABYTES_OVER_FIFTEEN_TRAINERS = 40

SCRIPT = """
    import gc, os, sys
    import numpy as np, keras, tensorflow as tf, loopwright as lw
    from tensorflow.python.framework.func_graph import FuncGraph

    x, y = np.zeros((64, 4), "float32"), np.zeros((64, 1), "float32")

    def resident_megabytes():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def graphs():
        gc.collect()
        return sum(isinstance(thing, FuncGraph) for thing in gc.get_objects())

    def train():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        trainer = lw.Trainer(lw.Supervised(model, "mse", "adam", metrics=["mae"]))
        trainer.fit(x, y, validation_data=(x, y), epochs=2, verbose=0)
        trainer.predict(x)

    for number in range(20):
        train()
        keras.backend.clear_session()
        if number == 4:
            megabytes, live = resident_megabytes(), graphs()
    print(resident_megabytes() - megabytes, graphs() - live)
"""


def test_twenty_trainers_leak_neither_graphs_nor_memory():
    megabytes, graphs = map(float, run_code(SCRIPT).stdout.split())
    assert graphs == 0
    assert megabytes < MEGABYTES_OVER_FIFTEEN_TRAINERS
