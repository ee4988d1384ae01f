from .draw import Certificate as Certificate
from .draw import Population as Population
from .ranking import Member as Member
from .ranking import Ranking as Ranking
