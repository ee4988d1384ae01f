(** Sequences of tokens under a model, on a finite tree: probabilities, future validity, sums over all texts.

    A text of at most [n] tokens is a sequence of length [n], padded by the end of sequence, which follows itself with
    probability one. [ok] says which sequences of full length are members of the language. *)

From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory Order.TotalTheory.
Local Open Scope ring_scope.

Section Sums.
Variables (R : realFieldType) (V : finType).
Implicit Types (f g : seq V -> R) (n : nat).

(** The sum over all sequences of length [n]. *)
Fixpoint total n f : R := if n is m.+1 then \sum_v total m (fun y => f (v :: y)) else f [::].

Lemma eq_total n f g : (forall y, size y = n -> f y = g y) -> total n f = total n g.
Proof.
elim: n f g => [|n IH] f g fg /=; first exact: fg.
by apply: eq_bigr => v _; apply: IH => y size_y; apply: fg => /=; rewrite size_y.
Qed.

Lemma ler_total n f g : (forall y, size y = n -> f y <= g y) -> total n f <= total n g.
Proof.
elim: n f g => [|n IH] f g fg /=; first exact: fg.
by apply: ler_sum => v _; apply: IH => y size_y; apply: fg => /=; rewrite size_y.
Qed.

Lemma total_scale n f c : total n (fun y => c * f y) = c * total n f.
Proof.
elim: n f => [|n IH] f //=.
by rewrite mulr_sumr; apply: eq_bigr => v _; rewrite IH.
Qed.

Lemma total_add n f g : total n (fun y => f y + g y) = total n f + total n g.
Proof.
elim: n f g => [|n IH] f g //=.
by rewrite -big_split /=; apply: eq_bigr => v _; rewrite IH.
Qed.

Lemma total0 n : total n (fun=> 0) = 0.
Proof. by elim: n => [|n IH] //=; rewrite big1 // => v _; rewrite IH. Qed.

Lemma total_ge0 n f : (forall y, size y = n -> 0 <= f y) -> 0 <= total n f.
Proof. by move=> f0; rewrite -(total0 n); apply: ler_total. Qed.

(** A sum of what is not negative is zero only where each part is. *)
Lemma total_eq0 n f y : (forall z, size z = n -> 0 <= f z) -> total n f = 0 -> size y = n -> f y = 0.
Proof.
elim: n f y => [|n IH] f [|v y] //= f0 sum0 [size_y]; apply: (IH (fun z => f (v :: z))) => //.
- by move=> z size_z; apply: f0 => /=; rewrite size_z.
- have nonneg u : true -> 0 <= total n (fun z => f (u :: z)).
    by move=> _; apply: total_ge0 => z size_z; apply: f0 => /=; rewrite size_z.
  by move/eqP: sum0; rewrite psumr_eq0 // => /allP/(_ v (mem_index_enum v))/eqP.
Qed.

End Sums.

Section Model.
Variables (R : realFieldType) (V : finType).
Variable p : seq V -> V -> R.
Variable ok : seq V -> bool.
Hypothesis p_ge0 : forall s v, 0 <= p s v.

(** The probability that the model goes on with [y] after [s]. *)
Fixpoint prob s y : R := if y is v :: z then p s v * prob (rcons s v) z else 1.

(** Future validity: the probability that [n] more tokens make a member. *)
Fixpoint phi n s : R := if n is m.+1 then \sum_v p s v * phi m (rcons s v) else (ok s)%:R.

(** The mass of a text: its probability if it is a member. *)
Definition mass s y : R := prob s y * (ok (s ++ y))%:R.

Lemma mass_cons s v y : mass s (v :: y) = p s v * mass (rcons s v) y.
Proof. by rewrite /mass /= cat_rcons mulrA. Qed.

Lemma prob_ge0 s y : 0 <= prob s y.
Proof. by elim: y s => [|v y IH] s //=; rewrite ?ler01 // mulr_ge0. Qed.

Lemma mass_ge0 s y : 0 <= mass s y.
Proof. by rewrite mulr_ge0 ?prob_ge0 ?ler0n. Qed.

(** Future validity is the total mass of the texts below a prefix. *)
Lemma phi_total n s : phi n s = total n (mass s).
Proof.
elim: n s => [|n IH] s /=; first by rewrite /mass /= mul1r cats0.
by apply: eq_bigr => v _; rewrite IH -total_scale; apply: eq_total => y _; rewrite mass_cons.
Qed.

Lemma phi_ge0 n s : 0 <= phi n s.
Proof. by rewrite phi_total; apply: total_ge0 => y _; apply: mass_ge0. Qed.

(** Below a prefix without future validity no text has any mass. *)
Lemma mass_eq0 n s y : phi n s = 0 -> size y = n -> mass s y = 0.
Proof. by rewrite phi_total => sum0 /total_eq0; apply; [move=> z _; apply: mass_ge0|]. Qed.

(** The model's distribution conditioned on the language. *)
Definition conditioned n s y : R := mass s y / phi n s.

Lemma conditioned_sum n s : phi n s != 0 -> total n (conditioned n s) = 1.
Proof.
move=> phi_n0; rewrite -(divff phi_n0) [X in _ = X / _]phi_total mulrC -total_scale.
by apply: eq_total => y _; rewrite /conditioned mulrC.
Qed.

Lemma conditioned_ge0 n s y : 0 <= conditioned n s y.
Proof. by rewrite divr_ge0 ?mass_ge0 ?phi_ge0. Qed.

End Model.
