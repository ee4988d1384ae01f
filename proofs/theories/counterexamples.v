(** What goes wrong without the coin: draws in proportion to the bounds, renormalised at each step, as masking does.

    Two tokens, texts of two of them, a model without preference; [true false] is no member. Each of the three members has a
    third of the conditioned distribution. Bounds that say "may be completed" give the one that begins with [true] a half. *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree doob.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory.
Local Open Scope ring_scope.

Definition even (s : seq bool) (v : bool) : rat := 1 / 2%:R.
Definition member (s : seq bool) : bool := s != [:: true; false].
Definition live n (s : seq bool) : rat := if n is 0 then (member s)%:R else 1.

Lemma conditioned_third : conditioned even member 2 [::] [:: true; true] = 1 / 3%:R.
Proof. by rewrite /conditioned /mass /= !big_bool /even /member /=; apply/eqP; vm_compute. Qed.

(** Masking, and any tree of bounds without its coin: a half. *)
Lemma masked_half : walk even live 2 [::] [:: true; true] = 1 / 2%:R.
Proof. by rewrite /= /proposed /normaliser !big_bool /even /live /member /=; apply/eqP; vm_compute. Qed.

Theorem the_coin_is_needed : walk even live 2 [::] [:: true; true] <> conditioned even member 2 [::] [:: true; true].
Proof. by rewrite masked_half conditioned_third => /eqP; vm_compute. Qed.

(** And without launch order: of two attempts under way, the one that finishes first. [mu] draws a short text or a long one. *)
Definition fair (short : bool) : rat := 1 / 2%:R.
Definition first_to_finish (y : bool) : rat :=
  \sum_(a : bool) \sum_(b : bool) fair a * fair b * ((a || b) == y)%:R.

Theorem launch_order_is_needed : first_to_finish true = 3%:R / 4%:R /\ fair true = 1 / 2%:R.
Proof. by split=> //; rewrite /first_to_finish !big_bool /fair /=; apply/eqP; vm_compute. Qed.
