from .fsm import FSMGuide as FSMGuide
from .grammar.cfg_guide import CFGGuide as CFGGuide
from .grammar.notation.reader import read_grammar as read_grammar
from .guide import Guide as Guide
from .json_schema.json_guide import JSONGuide as JSONGuide
from .machine_guide import MachineGuide as MachineGuide
from .table import Table as Table
