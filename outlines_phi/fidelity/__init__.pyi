from .probabilities import Probability as Probability
