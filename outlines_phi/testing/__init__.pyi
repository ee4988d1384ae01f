from .conformance import Conformance as Conformance
from .conformance import check_language_model as check_language_model
from .tree_growth import TreeGrowth as TreeGrowth
