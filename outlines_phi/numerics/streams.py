"""Streams of random numbers: which part of a draw reads which one."""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """Where the random streams of a prompt begin that are not those of its numbered attempts, walks or trajectories.

    A seed, the row of a prompt and a number name a stream; that of number ``i`` of one kind is ``kind + i``. Attempts, walks and
    trajectories are numbered from 0, and never reach the first of these.
    """

    NORMALIZER = 2**40
    """Residual attempts, which weigh exact draws."""
    TRIAL = 2**40
    """Trial walks of ``auto``, which has no residual attempts."""
    CANDIDATE = 2**41
    """Candidates of ``auto``."""
    PICK = 2**42
    """The pick of ``auto`` among its candidates."""
    CONFIDENCE = 2**43
    """Attempts of a certificate by confidence."""
    RESAMPLING = 2**44
    """Resampling of particles."""
    CHAIN = 2**45
    """The steps of a Markov chain."""
    ESTIMATE = 2**46
    """Estimators of future validity."""
    DRAFT = 2**47
    """Drafters."""
