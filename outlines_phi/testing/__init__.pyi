from .conformance import Conformance as Conformance
from .conformance import TreeGrowth as TreeGrowth
from .conformance import assert_guide as assert_guide
from .conformance import assert_spells as assert_spells
from .conformance import check_language_model as check_language_model
