from .model import CallCost as CallCost
from .model import LanguageModel as LanguageModel
from .model import TokenTrees as TokenTrees
from .sequences import ForestTrees as ForestTrees
from .sequences import SequenceTrees as SequenceTrees
from .table_model import TableModel as TableModel
from .transformers.transformers_model import TransformersModel as TransformersModel
