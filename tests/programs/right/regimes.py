"""How one trains: schedules, averages, accumulation, precision, frozen layers, plans."""

import keras
import tensorflow as tf
from keras import layers, ops
from tests.programs.right.right_program import BATCH, Program, classes, numbers


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), layers.Dense(4, "relu"), layers.Dense(1)])


def _fit(optimizer: object, plan: str = "graph", **options: object) -> Program:
    model = _model()
    model.compile(optimizer, "mse", metrics=["mae"])
    return Program(model, numbers(5), numbers(1), options, plan=plan)


def learning_rate_schedule() -> Program:
    return _fit(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 6)))


def learning_rate_schedule_on_the_fused_plan() -> Program:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5, staircase=True)
    return _fit(keras.optimizers.Adam(schedule), plan="fused")


def a_callback_that_sets_the_learning_rate() -> Program:
    def halved(epoch, rate):
        return rate * 0.5 if epoch else rate

    callbacks = [keras.callbacks.LearningRateScheduler(halved)]
    return _fit("sgd", callbacks=callbacks)


def early_stopping_and_a_plateau() -> Program:
    callbacks = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=10.0),
    ]
    return _fit("adam", callbacks=callbacks, validation_split=0.5)


def averaged_weights() -> Program:
    return _fit(keras.optimizers.Adam(use_ema=True, ema_momentum=0.9))


def accumulated_gradients() -> Program:
    return _fit(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


def clipped_gradients_and_decay() -> Program:
    return _fit(keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=0.5), plan="xla")


def steps_one_by_one() -> Program:
    return _fit("nadam", plan="eager")


def accumulated_by_hand_in_the_step() -> Program:
    class Accumulating(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.steps_seen = self.add_weight(
                shape=(), initializer="zeros", dtype="int32", trainable=False, name="seen"
            )
            self.sums = [
                self.add_weight(shape=v.shape, initializer="zeros", trainable=False, name="sum")
                for v in self.trainable_variables
            ]

        def train_step(self, data):
            x, y = data
            self.steps_seen.assign_add(1)
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            for total, gradient in zip(self.sums, gradients, strict=True):
                total.assign_add(gradient)

            def apply():
                self.optimizer.apply([s / 2.0 for s in self.sums], self.trainable_variables)
                for total in self.sums:
                    total.assign(ops.zeros_like(total))

            tf.cond(self.steps_seen % 2 == 0, apply, lambda: None)
            return {"loss": loss}

    inputs = keras.Input((5,))
    model = Accumulating(inputs, layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    return Program(model, numbers(5), numbers(1))


def mixed_precision() -> Program:
    policy = keras.DTypePolicy("mixed_float16")
    inputs = keras.Input((5,))
    hidden = layers.Dense(4, "relu", dtype=policy)(inputs)
    model = keras.Model(inputs, layers.Dense(1, dtype="float32")(hidden))
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), "mse")
    return Program(model, numbers(5), numbers(1))


def frozen_backbone() -> Program:
    backbone = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.2)]
    )
    backbone.trainable = False
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layers.Dense(1)(backbone(inputs, training=False)))
    model.compile("adam", "mse")
    return Program(model, numbers(5), numbers(1))


def images_with_augmentation_layers() -> Program:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomFlip("horizontal", seed=3),
            layers.Rescaling(0.5),
            layers.SeparableConv2D(3, 3, strides=2),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.3, seed=5),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Program(model, numbers(8, 8, 1), classes(3), {"validation_split": 0.34})


def segmentation_of_images() -> Program:
    inputs = keras.Input((8, 8, 1))
    down = layers.Conv2D(3, 3, strides=2, padding="same", activation="relu")(inputs)
    up = layers.UpSampling2D(2)(layers.Conv2D(3, 3, padding="same")(down))
    joined = layers.concatenate([up, inputs])
    model = keras.Model(inputs, layers.Conv2D(2, 1, activation="softmax")(joined))
    model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Program(model, numbers(8, 8, 1), classes(2, 8, 8))


def a_dataset_of_unknown_length() -> Program:
    rows = tf.data.Dataset.from_tensor_slices((numbers(5), numbers(1)))
    kept = rows.filter(lambda x, y: y[0] > -10.0).batch(BATCH)
    model = _model()
    model.compile("sgd", "mse")
    return Program(model, kept)
