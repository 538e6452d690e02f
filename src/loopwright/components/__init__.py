"""Losses, layers, schedules and more, to use or as examples; Keras can save and load them.

    from loopwright import components

    model.compile("nadam", components.HuberLoss(threshold=2.0))

Importing this package registers all of them with Keras: a process needs nothing else before it
loads a `.keras` file that contains them. Gradient transforms are in `components.gradients`.
"""

# Not lazily, as in `loopwright` itself: Keras finds only what is registered.
from loopwright.components import gradients as gradients
from loopwright.components.callbacks import KeepPredictions as KeepPredictions
from loopwright.components.layers import L1 as L1
from loopwright.components.layers import Dense as Dense
from loopwright.components.layers import Exponential as Exponential
from loopwright.components.layers import GlorotNormal as GlorotNormal
from loopwright.components.layers import NonNegative as NonNegative
from loopwright.components.layers import ResidualBlock as ResidualBlock
from loopwright.components.layers import SumProductQuotient as SumProductQuotient
from loopwright.components.layers import TrainingNoise as TrainingNoise
from loopwright.components.layers import softplus as softplus
from loopwright.components.losses import HuberLoss as HuberLoss
from loopwright.components.losses import HuberMetric as HuberMetric
from loopwright.components.losses import Perplexity as Perplexity
from loopwright.components.losses import huber as huber
from loopwright.components.losses import huber_with as huber_with
from loopwright.components.models import ReconstructionRegressor as ReconstructionRegressor
from loopwright.components.models import ResidualRegressor as ResidualRegressor
from loopwright.components.optimizers import Cyclic as Cyclic
from loopwright.components.optimizers import OneCycle as OneCycle
from loopwright.components.optimizers import Tiger as Tiger
from loopwright.components.optimizers import Warmup as Warmup
