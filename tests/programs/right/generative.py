"""Models that generate: several players, several optimizers, noise from seed generators."""

import keras
import tensorflow as tf
from keras import layers, ops
from tests.programs.right.right_program import Program, numbers


def _mlp(inputs: int, outputs: int, activation: str | None = None) -> keras.Model:
    return keras.Sequential(
        [keras.Input((inputs,)), layers.Dense(4, "tanh"), layers.Dense(outputs, activation)]
    )


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(5)

    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


def variational_autoencoder() -> Program:
    class VAE(keras.Model):
        def __init__(self):
            super().__init__()
            inputs = keras.Input((6,))
            mean, log_var = layers.Dense(2)(inputs), layers.Dense(2)(inputs)
            self.encoder = keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])])
            self.decoder = _mlp(2, 6)
            self.total = keras.metrics.Mean(name="total_loss")
            self.reconstruction = keras.metrics.Mean(name="reconstruction_loss")
            self.divergence = keras.metrics.Mean(name="kl_loss")

        @property
        def metrics(self):
            return [self.total, self.reconstruction, self.divergence]

        def train_step(self, data):
            with tf.GradientTape() as tape:
                mean, log_var, z = self.encoder(data)
                restored = self.decoder(z)
                reconstruction = ops.mean(ops.sum(ops.square(data - restored), axis=1))
                kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
                kl = ops.mean(ops.sum(kl, axis=1))
                total = reconstruction + kl
            gradients = tape.gradient(total, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.total.update_state(total)
            self.reconstruction.update_state(reconstruction)
            self.divergence.update_state(kl)
            return {
                "loss": self.total.result(),
                "reconstruction_loss": self.reconstruction.result(),
                "kl_loss": self.divergence.result(),
            }

    model = VAE()
    model.compile(optimizer=keras.optimizers.Adam())
    return Program(model, numbers(6))


def gan_with_two_optimizers() -> Program:
    class GAN(keras.Model):
        def __init__(self):
            super().__init__()
            self.discriminator, self.generator = _mlp(6, 1), _mlp(2, 6)
            self.seed_generator = keras.random.SeedGenerator(7)
            self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
            self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
            self.built = True

        @property
        def metrics(self):
            return [self.d_loss_tracker, self.g_loss_tracker]

        def compile(self, d_optimizer, g_optimizer, loss_fn):
            super().compile()
            self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

        def train_step(self, real):
            if isinstance(real, tuple):
                real = real[0]
            batch_size = ops.shape(real)[0]
            noise = keras.random.normal((batch_size, 2), seed=self.seed_generator)
            both = ops.concatenate([self.generator(noise), real], axis=0)
            labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))])
            labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seed_generator)
            with tf.GradientTape() as tape:
                d_loss = self.loss_fn(labels, self.discriminator(both))
            weights = self.discriminator.trainable_weights
            self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
            noise = keras.random.normal((batch_size, 2), seed=self.seed_generator)
            with tf.GradientTape() as tape:
                fooled = self.discriminator(self.generator(noise))
                g_loss = self.loss_fn(ops.zeros((batch_size, 1)), fooled)
            weights = self.generator.trainable_weights
            self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
            self.d_loss_tracker.update_state(d_loss)
            self.g_loss_tracker.update_state(g_loss)
            return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}

    model = GAN()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-4), keras.optimizers.Adam(3e-4), loss)
    return Program(model, numbers(6))


def wasserstein_gan_with_gradient_penalty() -> Program:
    class WGAN(keras.Model):
        def __init__(self):
            super().__init__()
            self.critic, self.generator = _mlp(6, 1), _mlp(2, 6)
            self.seeds = keras.random.SeedGenerator(9)
            self.built = True

        def compile(self, d_optimizer, g_optimizer):
            super().compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def penalty(self, real, fake):
            alpha = keras.random.uniform((ops.shape(real)[0], 1), seed=self.seeds)
            between = real + alpha * (fake - real)
            with tf.GradientTape() as tape:
                tape.watch(between)
                scores = self.critic(between, training=True)
            gradients = tape.gradient(scores, [between])[0]
            norm = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=1) + 1e-12)
            return tf.reduce_mean((norm - 1.0) ** 2)

        def train_step(self, real):
            count, d_loss = ops.shape(real)[0], None
            for _ in range(2):
                noise = keras.random.normal((count, 2), seed=self.seeds)
                with tf.GradientTape() as tape:
                    fake = self.generator(noise, training=True)
                    cost = ops.mean(self.critic(fake)) - ops.mean(self.critic(real))
                    d_loss = cost + 10.0 * self.penalty(real, fake)
                gradients = tape.gradient(d_loss, self.critic.trainable_variables)
                self.d_optimizer.apply_gradients(
                    zip(gradients, self.critic.trainable_variables, strict=True)
                )
            noise = keras.random.normal((count, 2), seed=self.seeds)
            with tf.GradientTape() as tape:
                g_loss = -ops.mean(self.critic(self.generator(noise, training=True)))
            gradients = tape.gradient(g_loss, self.generator.trainable_variables)
            self.g_optimizer.apply_gradients(
                zip(gradients, self.generator.trainable_variables, strict=True)
            )
            return {"d_loss": d_loss, "g_loss": g_loss}

    model = WGAN()
    model.compile(keras.optimizers.Adam(2e-4, beta_1=0.5), keras.optimizers.Adam(2e-4, beta_1=0.5))
    return Program(model, numbers(6))


def diffusion_with_averaged_network() -> Program:
    class Diffusion(keras.Model):
        def __init__(self):
            super().__init__()
            self.normalizer = layers.Normalization()
            self.network, self.ema_network = _mlp(5, 4), _mlp(5, 4)
            self.ema_network.set_weights(self.network.get_weights())
            self.seeds = keras.random.SeedGenerator(3)
            self.built = True

        def compile(self, **kwargs):
            super().compile(**kwargs)
            self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
            self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

        @property
        def metrics(self):
            return [self.noise_loss_tracker, self.image_loss_tracker]

        def denoise(self, network, noisy, noise_rates, signal_rates, training):
            inputs = ops.concatenate([noisy, noise_rates**2], axis=1)
            noises = network(inputs, training=training)
            return noises, (noisy - noise_rates * noises) / signal_rates

        def diffuse(self, images, network, training):
            images = self.normalizer(images, training=training)
            noises = keras.random.normal(ops.shape(images), seed=self.seeds)
            times = keras.random.uniform((ops.shape(images)[0], 1), 0.0, 1.0, seed=self.seeds)
            noise_rates, signal_rates = ops.sin(times), ops.cos(times)
            noisy = signal_rates * images + noise_rates * noises
            found = self.denoise(network, noisy, noise_rates, signal_rates, training)
            return self.loss(noises, found[0]), self.loss(images, found[1])

        def train_step(self, images):
            with tf.GradientTape() as tape:
                noise_loss, image_loss = self.diffuse(images, self.network, True)
            gradients = tape.gradient(noise_loss, self.network.trainable_weights)
            self.optimizer.apply_gradients(
                zip(gradients, self.network.trainable_weights, strict=True)
            )
            self.noise_loss_tracker.update_state(noise_loss)
            self.image_loss_tracker.update_state(image_loss)
            pairs = zip(self.network.weights, self.ema_network.weights, strict=True)
            for weight, ema_weight in pairs:
                ema_weight.assign(0.9 * ema_weight + 0.1 * weight)
            return {m.name: m.result() for m in self.metrics}

        def test_step(self, images):
            noise_loss, image_loss = self.diffuse(images, self.ema_network, False)
            self.noise_loss_tracker.update_state(noise_loss)
            self.image_loss_tracker.update_state(image_loss)
            return {m.name: m.result() for m in self.metrics}

    model = Diffusion()
    model.normalizer.adapt(numbers(4))
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    model.compile(optimizer=optimizer, loss=keras.losses.MeanAbsoluteError())
    return Program(model, numbers(4))


def denoising_autoencoder_of_images() -> Program:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(2, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2DTranspose(2, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy")
    images = abs(numbers(8, 8, 1)).clip(0, 1)
    return Program(model, (images + 0.1 * numbers(8, 8, 1, seed=2)).clip(0, 1), images)
