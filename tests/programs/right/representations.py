"""Models that learn to represent: contrastive, siamese, distilled."""

import keras
import tensorflow as tf
from keras import layers, ops
from tests.programs.right.right_program import BATCH, Program, classes, numbers


def _encoder(size: int = 4) -> keras.Model:
    return keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(size)])


def distillation() -> Program:
    class Distiller(keras.Model):
        def __init__(self, student, teacher):
            super().__init__()
            self.teacher, self.student = teacher, student

        def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1):
            super().compile(optimizer=optimizer, metrics=metrics)
            self.student_loss_fn = student_loss_fn
            self.distillation_loss_fn = distillation_loss_fn
            self.alpha = alpha

        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            teacher = ops.softmax(self.teacher(x, training=False) / 3.0, axis=1)
            student_loss = self.student_loss_fn(y, y_pred)
            distilled = self.distillation_loss_fn(teacher, ops.softmax(y_pred / 3.0, axis=1))
            return self.alpha * student_loss + (1 - self.alpha) * distilled * 9.0

        def call(self, x):
            return self.student(x)

    teacher = _encoder(3)
    teacher.trainable = False
    model = Distiller(_encoder(3), teacher)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
        student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        distillation_loss_fn=keras.losses.KLDivergence(),
    )
    return Program(model, numbers(5), classes(3))


def contrastive_with_unlabelled_batches_of_another_size() -> Program:
    class Contrastive(keras.Model):
        def __init__(self):
            super().__init__()
            self.augmenter = layers.GaussianNoise(0.1, seed=4)
            self.encoder, self.probe = _encoder(), keras.Sequential([layers.Dense(3)])
            self.temperature = 0.1
            self.probe.build((None, 4))
            self.built = True

        def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
            super().compile(**kwargs)
            self.contrastive_optimizer = contrastive_optimizer
            self.probe_optimizer = probe_optimizer
            self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.c_loss = keras.metrics.Mean(name="c_loss")
            self.c_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
            self.p_loss = keras.metrics.Mean(name="p_loss")

        @property
        def metrics(self):
            return [self.c_loss, self.c_accuracy, self.p_loss]

        def contrast(self, one, other):
            one, other = ops.normalize(one, axis=1), ops.normalize(other, axis=1)
            similarities = ops.matmul(one, ops.transpose(other)) / self.temperature
            labels = ops.arange(ops.shape(one)[0])
            self.c_accuracy.update_state(labels, similarities)
            self.c_accuracy.update_state(labels, ops.transpose(similarities))
            loss = keras.losses.sparse_categorical_crossentropy
            ways = (similarities, ops.transpose(similarities))
            return sum(ops.mean(loss(labels, way, from_logits=True)) for way in ways) / 2

        def train_step(self, data):
            (unlabelled, _), (labelled, labels) = data
            images = ops.concatenate((unlabelled, labelled), axis=0)
            one, other = (self.augmenter(images, training=True) for _ in range(2))
            with tf.GradientTape() as tape:
                loss = self.contrast(self.encoder(one), self.encoder(other))
            weights = self.encoder.trainable_weights
            self.contrastive_optimizer.apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
            self.c_loss.update_state(loss)
            features = self.encoder(labelled, training=False)
            with tf.GradientTape() as tape:
                probe_loss = self.probe_loss(labels, self.probe(features, training=True))
            weights = self.probe.trainable_weights
            self.probe_optimizer.apply_gradients(
                zip(tape.gradient(probe_loss, weights), weights, strict=True)
            )
            self.p_loss.update_state(probe_loss)
            return {m.name: m.result() for m in self.metrics}

        def test_step(self, data):
            labelled, labels = data
            class_logits = self.probe(self.encoder(labelled, training=False), training=False)
            self.p_loss.update_state(self.probe_loss(labels, class_logits))
            return {"p_loss": self.p_loss.result()}

    model = Contrastive()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())

    def batches(size, seed):
        pairs = (numbers(5, seed=seed), classes(3, seed=seed))
        whole = tf.data.Dataset.from_tensor_slices(pairs).repeat(3)
        return whole.batch(size, drop_remainder=True).take(3)

    both = tf.data.Dataset.zip((batches(9, 1), batches(3, 2))).prefetch(1)
    return Program(model, both, options={"validation_data": batches(BATCH, 3)})


def siamese_with_triplets() -> Program:
    class Siamese(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.margin = _encoder(), 0.5
            self.loss_tracker = keras.metrics.Mean(name="loss")

        def call(self, inputs):
            anchor, positive, negative = (self.embedding(part) for part in inputs)
            near = ops.sum(ops.square(anchor - positive), -1)
            return near, ops.sum(ops.square(anchor - negative), -1)

        def distance_loss(self, data):
            near, far = self(data)
            return ops.mean(ops.maximum(near - far + self.margin, 0.0))

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.distance_loss(data)
            gradients = tape.gradient(loss, self.embedding.trainable_weights)
            self.optimizer.apply_gradients(
                zip(gradients, self.embedding.trainable_weights, strict=True)
            )
            self.loss_tracker.update_state(loss)
            return {"loss": self.loss_tracker.result()}

        def test_step(self, data):
            self.loss_tracker.update_state(self.distance_loss(data))
            return {"loss": self.loss_tracker.result()}

        @property
        def metrics(self):
            return [self.loss_tracker]

    model = Siamese()
    model.compile(optimizer=keras.optimizers.Adam(), weighted_metrics=[])
    triplets = tuple(numbers(5, seed=seed) for seed in range(3))
    data = tf.data.Dataset.from_tensor_slices(triplets).batch(BATCH)
    return Program(model, data, options={"validation_data": data})


def supervised_contrastive_loss_class() -> Program:
    class SupervisedContrastive(keras.losses.Loss):
        def __init__(self, temperature=0.5, name="contrast"):
            super().__init__(name=name)
            self.temperature = temperature

        def __call__(self, labels, features, sample_weight=None):
            features = ops.normalize(features, axis=1)
            logits = ops.matmul(features, ops.transpose(features)) / self.temperature
            labels = ops.reshape(labels, (-1, 1))
            same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
            shares = same / ops.sum(same, axis=1, keepdims=True)
            return ops.mean(-ops.sum(shares * ops.log_softmax(logits, axis=1), axis=1))

    model = _encoder()
    model.compile("adam", loss=SupervisedContrastive())
    return Program(model, numbers(5), classes(3))
