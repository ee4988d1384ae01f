(** Total variation: of certified draws, of proposals without their weights, of masking (theory.md, sections 2 and 8). *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree doob.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory Order.TotalTheory.
Local Open Scope ring_scope.

Section Distance.
Variables (R : realFieldType) (V : finType).
Implicit Types (f g : seq V -> R).

(** Total variation: half the sum of the differences. *)
Definition tv n f g : R := total n (fun y => `|f y - g y|) / 2%:R.

(** It is what the overlap of both lacks of one. *)
Theorem tv_overlap n f g : total n f = 1 -> total n g = 1 ->
  tv n f g = 1 - total n (fun y => Num.min (f y) (g y)).
Proof.
move=> f1 g1; rewrite /tv; have two : (2%:R : R) != 0 by rewrite pnatr_eq0.
have -> : total n (fun y => `|f y - g y|) = total n (fun y => f y + (g y + - 2%:R * Num.min (f y) (g y))).
  apply: eq_total => y _; rewrite mulNr mulr_natl mulr2n opprD.
  by case: (lerP (f y) (g y)) => _; [rewrite addrCA addNKr | rewrite addNKr].
by rewrite !total_add total_scale f1 g1 addrA mulrDl mulrAC mulNr mulfV // mulN1r.
Qed.

(** A distribution that is nowhere less than a part [c] of another one is at most [1 - c] away from it. *)
Corollary tv_dominated n f g c : (forall y, 0 <= f y) -> total n f = 1 -> total n g = 1 ->
  (forall y, size y = n -> c * f y <= g y) -> tv n f g <= 1 - c.
Proof.
move=> f0 f1 g1 cfg; have c1 : c <= 1 by rewrite -[c]mulr1 -{1}f1 -total_scale -g1 ler_total.
rewrite tv_overlap // ler_add2l ler_opp2 -[leLHS]mulr1 -f1 -total_scale; apply: ler_total => y size_y.
by rewrite le_minr cfg // andbT -[leRHS]mul1r ler_wpmul2r.
Qed.

End Distance.

Section Applications.
Variables (R : realFieldType) (V : finType).
Variable p : seq V -> V -> R.
Variable ok : seq V -> bool.
Hypothesis p_ge0 : forall s v, 0 <= p s v.

Local Notation phi := (phi p ok).
Local Notation mass := (mass p ok).
Local Notation conditioned := (conditioned p ok).

(** Draws that have every member that a tree holds with at least its mass over the upper bound [u], as walks by frozen bounds
    have, are within [(u - l) / u] of the conditioned distribution, where [l] is the mass of what it holds. *)
Theorem certificate n s (held : seq V -> bool) nu l u : 0 < u -> phi n s <= u -> phi n s != 0 -> total n nu = 1 ->
  (forall y, 0 <= nu y) -> l <= total n (fun y => mass s y * (held y)%:R) ->
  (forall y, size y = n -> held y -> mass s y / u <= nu y) -> tv n (conditioned n s) nu <= (u - l) / u.
Proof.
move=> u0 phiu phi0 nu1 nu0 low walks; rewrite tv_overlap ?conditioned_sum // mulrBl divff ?gt_eqF //.
rewrite ler_add2l ler_opp2; apply: (le_trans (ler_wpmul2r _ low)); first by rewrite invr_ge0 ltW.
rewrite mulrC -total_scale; apply: ler_total => y size_y.
have [holds|] := boolP (held y); last by rewrite mulr0 mulr0 le_minr nu0 conditioned_ge0.
have phi_gt0 : 0 < phi n s by rewrite lt_def phi0; exact: (phi_ge0 ok p_ge0 n s).
rewrite mulr1 mulrC le_minr walks // andbT ler_wpmul2l ?mass_ge0 //.
by rewrite lef_pinv ?posrE.
Qed.

(** An estimate of future validity that is within factors [a] and [b] of it at every prefix. *)
Variable h : nat -> seq V -> R.
Variables a b : R.
Hypothesis a_gt0 : 0 < a.
Hypothesis h_low : forall n s, a * phi n s <= h n s.
Hypothesis h_high : forall n s, h n s <= b * phi n s.

Local Notation walk := (walk p h).
Local Notation normaliser := (normaliser p h).

Lemma h_nonneg n s : 0 <= h n s.
Proof. by apply: le_trans (h_low n s); rewrite mulr_ge0 ?phi_ge0 // ltW. Qed.

Lemma h_zero n s : phi n s = 0 -> h n s = 0.
Proof. by move=> zero; apply/eqP; rewrite eq_le h_nonneg andbT (le_trans (h_high n s)) // zero mulr0. Qed.

Lemma normaliser_low n s : a * phi n.+1 s <= normaliser n s.
Proof. by rewrite mulr_sumr; apply: ler_sum => v _; rewrite mulrCA ler_wpmul2l. Qed.

Lemma normaliser_high n s : normaliser n s <= b * phi n.+1 s.
Proof. by rewrite [in leRHS]/= mulr_sumr; apply: ler_sum => v _; rewrite mulrCA ler_wpmul2l. Qed.

Lemma normaliser_gt0 n s : phi n.+1 s != 0 -> 0 < normaliser n s.
Proof.
move=> phi0; apply: lt_le_trans (normaliser_low n s); rewrite mulr_gt0 // lt_def phi0; exact: (phi_ge0 ok p_ge0 n.+1 s).
Qed.

Lemma walk_sum n s : phi n s != 0 -> total n (walk n s) = 1.
Proof.
elim: n s => [|n IH] s // phi0; rewrite [LHS]/=.
transitivity (\sum_v proposed p h n s v); last first.
  by rewrite /proposed -mulr_suml divff // gt_eqF // normaliser_gt0.
apply: eq_bigr => v _; rewrite -[RHS]mulr1.
have [/h_zero zero|nonzero] := eqVneq (phi n (rcons s v)) 0; last by rewrite -(IH _ nonzero) -total_scale.
by rewrite /proposed zero mulr0 !mul0r -[RHS](total0 R V n); apply: eq_total => y _; rewrite mul0r.
Qed.

Lemma walk_low n s y : phi n s != 0 -> size y = n -> (a / b) ^+ n * conditioned n s y <= walk n s y.
Proof.
elim: n s y => [|n IH] s [|v y] // phi0; first by move=> _; rewrite expr0 mul1r /tree.conditioned /tree.mass cats0 mul1r divff.
case=> size_y; rewrite [walk _ _ _]/= /proposed.
have N0 := normaliser_gt0 phi0.
have b0 : 0 < b.
  rewrite -(pmulr_lgt0 _ (_ : 0 < phi n.+1 s)); first exact: lt_le_trans N0 (normaliser_high n s).
  by rewrite lt_def phi0; exact: (phi_ge0 ok p_ge0 n.+1 s).
have step_ge0 : 0 <= p s v * h n (rcons s v) / normaliser n s by rewrite divr_ge0 ?mulr_ge0 ?h_nonneg // ltW.
have [zero|nonzero] := eqVneq (phi n (rcons s v)) 0.
  by rewrite /tree.conditioned mass_cons (mass_eq0 p_ge0 zero size_y) mulr0 mul0r mulr0 (h_zero zero) mulr0 !mul0r.
apply: le_trans (ler_wpmul2l step_ge0 (IH _ _ nonzero size_y)).
have part : a / b * (p s v * phi n (rcons s v) / phi n.+1 s) <= p s v * h n (rcons s v) / normaliser n s.
  have phi_gt0 : 0 < phi n.+1 s by rewrite lt_def phi0; exact: (phi_ge0 ok p_ge0 n.+1 s).
  have -> : a / b * (p s v * phi n (rcons s v) / phi n.+1 s) = p s v * (a * phi n (rcons s v)) / (b * phi n.+1 s).
    by rewrite mulrACA -invfM mulrCA.
  apply: ler_pmul.
  - by rewrite mulr_ge0 // mulr_ge0 ?(ltW a_gt0) // phi_ge0.
  - by rewrite invr_ge0 mulr_ge0 ?(ltW b0) // ltW.
  - exact: ler_wpmul2l.
  - by rewrite lef_pinv ?posrE ?normaliser_high // mulr_gt0.
have rest : 0 <= (a / b) ^+ n * conditioned n (rcons s v) y.
  by rewrite mulr_ge0 ?conditioned_ge0 // exprn_ge0 // divr_ge0 ?ltW.
apply: le_trans (ler_wpmul2r rest part).
rewrite exprS /tree.conditioned mass_cons [leRHS]mulrACA.
by rewrite [p s v * phi n _ / _ * _]mulrACA [_ * _ * mass _ _]mulrAC [p s v * _ * _ * _]mulrACA mulfV // mulr1.
Qed.

(** The a-priori bound: without its weights, a proposal by such an estimate is within [1 - (a / b)^n] of the conditioned
    distribution after [n] tokens. *)
Theorem a_priori n s : phi n s != 0 -> tv n (conditioned n s) (walk n s) <= 1 - (a / b) ^+ n.
Proof.
move=> phi0; apply: tv_dominated; [|exact: conditioned_sum|exact: walk_sum|].
- by move=> y; apply: conditioned_ge0.
- by move=> y size_y; apply: walk_low.
Qed.

End Applications.
