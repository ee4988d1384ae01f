(** Windows of a look-ahead for banned phrases: the distribution of a text, and the mean of its weight (theory.md, 6.2 and 6.3). *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Windows.
Variables (R : realFieldType) (V E : finType).
Variable p : seq V -> V -> R.

Local Notation prob := (prob p).

Lemma prob_cat s u w : prob s (u ++ w) = prob s u * prob (s ++ u) w.
Proof.
by elim: u s => [|v u IH] s /=; rewrite ?mul1r ?cats0 // IH cat_rcons mulrA.
Qed.

(** A text is written window by window. [psi r] is the probability that what follows the committed text [r] comes to the end of a
    window without a phrase; a window is drawn in proportion to the model's probability among those that do. *)
Variable psi : seq V -> R.
Hypothesis psi_neq0 : forall r, psi r != 0.

Fixpoint written r (xs : seq (seq V)) : R :=
  if xs is x :: zs then prob r x / psi r * written (r ++ x) zs else 1.

Fixpoint normalisers r (xs : seq (seq V)) : R :=
  if xs is x :: zs then psi r * normalisers (r ++ x) zs else 1.

(** Where windows end telescopes: a text has its own probability over the normalisers of its windows. *)
Theorem telescope r xs : written r xs * normalisers r xs = prob r (flatten xs).
Proof.
elim: xs r => [|x xs IH] r /=; first by rewrite mulr1.
by rewrite mulrACA IH divfK // prob_cat.
Qed.

(** Each normaliser is estimated with random numbers of its own, without bias. *)
Variable kernel : seq V -> E -> R.
Variable estimate : seq V -> E -> R.
Hypothesis no_bias : forall r, \sum_e kernel r e * estimate r e = psi r.

Fixpoint mean_weight r (xs : seq (seq V)) : R :=
  if xs is x :: zs then \sum_e kernel r e * (estimate r e * mean_weight (r ++ x) zs) else 1.

(** So the mean weight of a text, times its probability of being written, is the model's own probability of it. *)
Theorem window_weight r xs : written r xs * mean_weight r xs = prob r (flatten xs).
Proof.
rewrite -telescope; congr (_ * _); elim: xs r => [|x xs IH] r //=.
by rewrite -IH -no_bias mulr_suml; apply: eq_bigr => e _; rewrite mulrA.
Qed.

End Windows.
