from .draws import Certificate as Certificate
from .draws import Population as Population
from .ranking import Member as Member
from .ranking import Ranking as Ranking
