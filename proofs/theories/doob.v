(** The Doob transform, and weights of proposals (theory.md, sections 2 and 4.1). *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory Order.TotalTheory.
Local Open Scope ring_scope.

Section Doob.
Variables (R : realFieldType) (V : finType).
Variable p : seq V -> V -> R.
Variable ok : seq V -> bool.
Hypothesis p_ge0 : forall s v, 0 <= p s v.

Local Notation phi := (phi p ok).
Local Notation mass := (mass p ok).

(** Each next token drawn with probability p(v|s) Phi(sv) / Phi(s). *)
Fixpoint transformed n s y : R :=
  match n, y with
  | m.+1, v :: z => p s v * phi m (rcons s v) / phi n s * transformed m (rcons s v) z
  | _, _ => 1
  end.

(** Doob identity: such draws have the distribution conditioned on the language. *)
Theorem doob_identity n s y : phi n s != 0 -> size y = n -> transformed n s y = conditioned p ok n s y.
Proof.
elim: n s y => [|n IH] s [|v y] //= phi_s.
  by move=> _; rewrite /conditioned /tree.mass /= cats0 mul1r divff.
case=> size_y; rewrite /conditioned mass_cons.
have [zero|nonzero] := eqVneq (phi n (rcons s v)) 0.
  by rewrite zero mulr0 !mul0r (mass_eq0 p_ge0 zero size_y) mulr0 mul0r.
by rewrite IH // /conditioned mulrACA [_ * _ * mass _ _]mulrAC mulrACA mulfV // mulr1.
Qed.

(** A proposal: [h n s] in the place of [phi n s]; at the end it is membership. *)
Variable h : nat -> seq V -> R.
Hypothesis h_end : forall s, h 0 s = (ok s)%:R.

(** The normaliser of a step, and the probability of a next token. *)
Definition normaliser m s : R := \sum_v p s v * h m (rcons s v).
Definition proposed m s v : R := p s v * h m (rcons s v) / normaliser m s.

(** The weight of a walk: the product of normalisers over values, each step's. *)
Fixpoint weight n s y : R :=
  match n, y with
  | m.+1, v :: z => normaliser m s / h m (rcons s v) * weight m (rcons s v) z
  | _, _ => 1
  end.

Fixpoint walk n s y : R :=
  match n, y with
  | m.+1, v :: z => proposed m s v * walk m (rcons s v) z
  | _, _ => 1
  end.

(** [h] is nowhere zero where a member can still be reached. *)
Hypothesis h_gt0 : forall n s, phi n s != 0 -> 0 < h n s.
Hypothesis h_ge0 : forall n s, 0 <= h n s.

Lemma normaliser_neq0 m s v : p s v * h m (rcons s v) != 0 -> normaliser m s != 0.
Proof.
move=> nonzero; rewrite /normaliser psumr_eq0 => [|u _]; last by rewrite mulr_ge0.
by apply/allPn; exists v; rewrite ?mem_index_enum.
Qed.

(** A step of the walk times its factor of the weight is the model's own step. *)
Lemma step_weight m s v : h m (rcons s v) != 0 ->
  proposed m s v * (normaliser m s / h m (rcons s v)) = p s v.
Proof.
move=> h_v; rewrite /proposed; have [->|p_v] := eqVneq (p s v) 0; first by rewrite !mul0r.
have sum_v : normaliser m s != 0 by apply: (normaliser_neq0 (v := v)); rewrite mulf_neq0.
by rewrite -mulrA mulKf // mulfK.
Qed.

(** The weight of a text times its probability under the proposal is its mass, whatever the proposal is. *)
Theorem weighted_walk n s y : size y = n -> walk n s y * weight n s y * (ok (s ++ y))%:R = mass s y.
Proof.
elim: n s y => [|n IH] s [|v y] //=; first by rewrite /tree.mass /= mul1r.
case=> size_y; rewrite mass_cons mulrACA -[_ * (ok _)%:R]mulrA -cat_rcons IH //.
have [zero|nonzero] := eqVneq (h n (rcons s v)) 0; last by rewrite step_weight.
have /eqP phi0 : phi n (rcons s v) == 0 by apply/negPn/negP => /h_gt0; rewrite zero ltxx.
by rewrite (mass_eq0 p_ge0 phi0 size_y) !mulr0.
Qed.

(** So weighted means are those of the language: [E[w f] = sum of mass times f]. *)
Theorem weighted_mean n s (f : seq V -> R) :
  total n (fun y => walk n s y * (weight n s y * (ok (s ++ y))%:R) * f y) = total n (fun y => mass s y * f y).
Proof. by apply: eq_total => y size_y; rewrite mulrA weighted_walk. Qed.

(** And the mean weight is future validity. *)
Corollary mean_weight n s : total n (fun y => walk n s y * (weight n s y * (ok (s ++ y))%:R)) = phi n s.
Proof. by rewrite phi_total; apply: eq_total => y size_y; rewrite mulrA weighted_walk. Qed.

End Doob.
