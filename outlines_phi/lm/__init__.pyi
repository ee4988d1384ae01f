from .model import LanguageModel as LanguageModel
from .table_model import TableModel as TableModel
from .transformers.transformers_model import TransformersModel as TransformersModel
