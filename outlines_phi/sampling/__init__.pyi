from .draw import Certificate as Certificate
from .ranking import Member as Member
from .smc.population import Population as Population
