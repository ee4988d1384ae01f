(** Verification of drafts: what is written has the target distribution, whatever drafted it (theory.md, section 6).

    With the masked distribution as target, token by token, the texts are those of masking: the first source's impossibility. With
    the Doob transform as target they are those of the conditioned distribution, by [doob_identity]. *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree doob.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory Order.TotalTheory.
Local Open Scope ring_scope.

Section Verification.
Variables (R : realFieldType) (V : finType).
Variables target draft : V -> R.
Hypothesis target_ge0 : forall v, 0 <= target v.
Hypothesis draft_ge0 : forall v, 0 <= draft v.
Hypothesis target_sum : \sum_v target v = 1.
Hypothesis draft_sum : \sum_v draft v = 1.

(** The probability that [v] is drafted and kept, which is the lesser of both; and that no draft is kept. *)
Definition kept v : R := draft v * Num.min 1 (target v / draft v).
Definition refused : R := 1 - \sum_v kept v.

(** What is drawn in the place of a draft that was refused. *)
Definition residual v : R := (target v - kept v) / refused.

Lemma kept_min v : kept v = Num.min (draft v) (target v).
Proof.
rewrite /kept; have [->|d0] := eqVneq (draft v) 0; first by rewrite mul0r min_l.
by rewrite minr_pmulr // mulr1 mulrCA mulfV // mulr1.
Qed.

(** Nothing is refused only where the draft is the target. *)
Lemma none_refused v : refused = 0 -> kept v = target v.
Proof.
move=> none; have : \sum_v (target v - kept v) = 0.
  by rewrite sumrB target_sum; move/eqP: none; rewrite subr_eq0 => /eqP <-; rewrite subrr.
move/eqP; rewrite psumr_eq0 => [/allP/(_ v (mem_index_enum v))|u _]; first by rewrite /= subr_eq0 => /eqP.
by rewrite subr_ge0 kept_min le_minl lexx orbT.
Qed.

Theorem verified v : kept v + refused * residual v = target v.
Proof.
have [none|some] := eqVneq refused 0; first by rewrite none mul0r addr0 none_refused.
by rewrite /residual mulrC divfK // addrC subrK.
Qed.

(** The residual is a distribution. *)
Lemma residual_ge0 v : 0 <= residual v.
Proof.
have most u : kept u <= draft u by rewrite kept_min le_minl lexx.
rewrite divr_ge0 //; first by rewrite subr_ge0 kept_min le_minl lexx orbT.
by rewrite /refused -draft_sum subr_ge0 ler_sum.
Qed.

Lemma residual_sum : refused != 0 -> \sum_v residual v = 1.
Proof. by move=> some; rewrite -mulr_suml sumrB target_sum divff. Qed.

End Verification.
