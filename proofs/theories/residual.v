(** Residual attempts: an unbiased estimate of the normaliser between frozen bounds (theory.md, section 5.7). *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory Order.TotalTheory.
Local Open Scope ring_scope.

Section Residual.
Variables (R : realFieldType) (V : finType).
Variable p : seq V -> V -> R.
Variable ok : seq V -> bool.
Hypothesis p_ge0 : forall s v, 0 <= p s v.

Local Notation phi := (phi p ok).

(** Which prefixes a tree has not looked beyond, and its bounds: nothing is known at the frontier, everything at the end, and inside
    a bound is the mean of those of the children. *)
Variable frontier : nat -> seq V -> bool.

Fixpoint lower n s : R :=
  if frontier n s then 0 else if n is m.+1 then \sum_v p s v * lower m (rcons s v) else (ok s)%:R.

Fixpoint upper n s : R :=
  if frontier n s then 1 else if n is m.+1 then \sum_v p s v * upper m (rcons s v) else (ok s)%:R.

Definition gap n s : R := upper n s - lower n s.

Hypothesis phi_le1 : forall n s, phi n s <= 1.

Lemma lower_phi n s : lower n s <= phi n s.
Proof.
elim: n s => [|n IH] s /=; case: ifP => _ //; first by rewrite ler0n.
  by rewrite (phi_ge0 ok p_ge0 n.+1 s).
by apply: ler_sum => v _; rewrite ler_wpmul2l.
Qed.

Lemma phi_upper n s : phi n s <= upper n s.
Proof.
elim: n s => [|n IH] s /=; case: ifP => _ //; first by rewrite lern1 leq_b1.
  exact: (phi_le1 n.+1 s).
by apply: ler_sum => v _; rewrite ler_wpmul2l.
Qed.

Lemma gap_step n s : ~~ frontier n.+1 s -> gap n.+1 s = \sum_v p s v * gap n (rcons s v).
Proof. by move=> /negPf inner; rewrite /gap /= inner -sumrB; apply: eq_bigr => v _; rewrite mulrBr. Qed.

(** A residual attempt goes down in proportion to [p] times the gap of a child, and from the frontier on as the model does, where it
    succeeds with the probability that is left to find out. *)
Fixpoint success n s : R :=
  if frontier n s then phi n s
  else if n is m.+1 then \sum_v p s v * gap m (rcons s v) / gap n s * success m (rcons s v) else 0.

Theorem residual n s : gap n s * success n s = phi n s - lower n s.
Proof.
elim: n s => [|n IH] s.
  by rewrite /gap /=; case: ifP => _; rewrite ?subr0 ?mul1r // subrr mul0r.
have [edge|inner] := boolP (frontier n.+1 s); first by rewrite /gap /= edge !subr0 mul1r.
have [none|some] := eqVneq (gap n.+1 s) 0.
  have := lower_phi n.+1 s; have := phi_upper n.+1 s; move/eqP: none; rewrite /gap subr_eq0 => /eqP -> up low.
  by rewrite subrr mul0r; apply/esym/eqP; rewrite subr_eq0 eq_le up low.
rewrite [success _ _]/= (negPf inner) mulr_sumr [lower _ _]/= (negPf inner) -sumrB.
apply: eq_bigr => v _; rewrite -mulrBr -IH [RHS]mulrA mulrA; congr (_ * _).
by rewrite mulrC divfK.
Qed.

(** Its steps are a distribution. *)
Lemma residual_steps n s : ~~ frontier n.+1 s -> gap n.+1 s != 0 ->
  \sum_v p s v * gap n (rcons s v) / gap n.+1 s = 1.
Proof. by move=> inner some; rewrite -mulr_suml -gap_step // divff. Qed.

(** So the lower bound, and the gap where an attempt succeeds, have future validity as their mean. *)
Corollary unbiased n s : lower n s + gap n s * success n s = phi n s.
Proof. by rewrite residual addrC subrK. Qed.

End Residual.
