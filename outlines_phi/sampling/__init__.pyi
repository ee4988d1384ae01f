from .draws import Alternative as Alternative
from .draws import Certificate as Certificate
from .draws import Population as Population
from .draws import Thought as Thought
from .draws import ThoughtText as ThoughtText
from .draws import TokenAccount as TokenAccount
from .ranking import Member as Member
from .ranking import Ranking as Ranking
