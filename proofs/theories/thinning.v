(** Exact draws by thinning, under bounds that change while a walk goes on (theory.md, section 5.3). *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.POrderTheory Order.TotalTheory.
Local Open Scope ring_scope.

Section Thinning.
Variables (R : realFieldType) (V E : finType).
Variable p : seq V -> V -> R.
Variable ok : seq V -> bool.
Hypothesis p_ge0 : forall s v, 0 <= p s v.

Local Notation phi := (phi p ok).
Local Notation mass := (mass p ok).

(** What has happened so far, elsewhere too: other walks, other calls. [E] are events between two steps of this walk. Which one
    comes is drawn from [kernel], which may depend on all of the past and on where the walk stands. *)
Variable kernel : seq E -> seq V -> E -> R.
Hypothesis kernel_sum : forall past s, \sum_e kernel past s e = 1.
Hypothesis kernel_ge0 : forall past s e, 0 <= kernel past s e.

(** The bound of a prefix after a past: whatever rule adapted it, an upper bound of future validity, and membership at the end. *)
Variable upper : nat -> seq E -> seq V -> R.
Hypothesis upper_phi : forall m past s, phi m s <= upper m past s.
Hypothesis upper_end : forall past s, upper 0 past s = (ok s)%:R.

(** A walk stands at [s] and carries [u], the bound of [s] when it came there. It fails with probability [1 - S / u], where [S] is
    the sum of [p] times the bounds of the children now, and else goes to [v] in proportion to its part of [S]: with probability
    [p v * upper v / u] altogether. *)
Definition step m past s u v : R := p s v * upper m past (rcons s v) / u.

(** The probability that a walk returns [y]. *)
Fixpoint returned n past s u y : R :=
  match n, y with
  | m.+1, v :: z =>
      \sum_e kernel past s e * (step m (rcons past e) s u v *
        returned m (rcons past e) (rcons s v) (upper m (rcons past e) (rcons s v)) z)
  | _, _ => 1
  end.

(** An attempt returns a text with its mass over the bound of the root at its launch, whatever the rule does to the bounds
    between the steps. *)
Theorem thinning n past s u y : size y = n.+1 -> returned n.+1 past s u y = mass s y / u.
Proof.
elim: n past s u y => [|n IH] past s u [|v y] // [size_y].
  case: y size_y => //= _.
  transitivity (\sum_e kernel past s e * (mass s [:: v] / u)); last by rewrite -mulr_suml kernel_sum mul1r.
  by apply: eq_bigr => e _; rewrite mulr1 /step upper_end mass_cons /tree.mass /= cats0 mul1r.
rewrite [LHS]/=; transitivity (\sum_e kernel past s e * (mass s (v :: y) / u)); last first.
  by rewrite -mulr_suml kernel_sum mul1r.
apply: eq_bigr => e _; congr (_ * _).
rewrite -/(returned n.+1 _ _ _ _) IH // mass_cons /step; set b := upper _ _ _.
have [zero|nonzero] := eqVneq b 0; last by rewrite mulrACA [_ * _ * mass _ _]mulrAC mulrACA mulfV // mulr1.
have /eqP phi0 : phi n.+1 (rcons s v) == 0 by rewrite eq_le phi_ge0 // andbT -zero upper_phi.
by rewrite (mass_eq0 p_ge0 phi0 size_y) zero mulr0 !mul0r.
Qed.

(** It is a walk: where bounds never rise, the steps and the failure are a distribution. *)
Theorem step_distribution m past s u : 0 < u -> \sum_v p s v * upper m past (rcons s v) <= u ->
  (forall v, 0 <= step m past s u v) /\ 0 <= 1 - \sum_v step m past s u v.
Proof.
move=> u_gt0 falls; split=> [v|].
  by rewrite divr_ge0 ?(ltW u_gt0) // mulr_ge0 // (le_trans _ (upper_phi m past (rcons s v))) // phi_ge0.
by rewrite subr_ge0 -mulr_suml ler_pdivr_mulr // mul1r.
Qed.

(** So an attempt succeeds with probability [Phi / U], and what it returns then has the conditioned distribution. *)
Corollary accepted n past s u : total n.+1 (returned n.+1 past s u) = phi n.+1 s / u.
Proof.
rewrite phi_total mulrC -total_scale; apply: eq_total => y size_y.
by rewrite thinning // mulrC.
Qed.

Corollary returned_conditioned n past s u y : phi n.+1 s != 0 -> size y = n.+1 ->
  returned n.+1 past s u y = (phi n.+1 s / u) * conditioned p ok n.+1 s y.
Proof.
by move=> phi0 size_y; rewrite thinning // /conditioned [RHS]mulrC mulrA divfK.
Qed.

End Thinning.

Section LaunchOrder.
Variables (R : realFieldType) (Y : eqType).

(** Attempts in launch order. What is known before one is launched is the outcomes of those before it, [None] for a failure; then
    it returns [y] with probability [mu y * rate past]. *)
Variable mu : Y -> R.
Hypothesis mu_ge0 : forall y, 0 <= mu y.
Variable rate : seq (option Y) -> R.
Variable least : R.
Hypothesis least_ge0 : 0 <= least.
Hypothesis rate_least : forall past, least <= rate past.
Hypothesis rate_most : forall past, rate past <= 1.

(** The probability that the first accepted draws of [tries] attempts are [ys], in this order. *)
Fixpoint drawn tries past ys : R :=
  match ys, tries with
  | [::], _ => 1
  | _ :: _, 0 => 0
  | y :: zs, more.+1 =>
      mu y * rate past * drawn more (rcons past (Some y)) zs + (1 - rate past) * drawn more (rcons past None) ys
  end.

(** The probability of [k] successes in independent trials of probability [least] each. *)
Fixpoint successes tries k : R :=
  match k, tries with
  | 0, _ => 1
  | _.+1, 0 => 0
  | j.+1, more.+1 => least * successes more j + (1 - least) * successes more k
  end.

Definition product ys : R := foldr (fun y c => mu y * c) 1 ys.

Lemma product_ge0 ys : 0 <= product ys.
Proof. by elim: ys => [|y ys IH] /=; rewrite ?ler01 // mulr_ge0. Qed.

Lemma least_le1 : least <= 1.
Proof. exact: le_trans (rate_least [::]) (rate_most [::]). Qed.

Lemma successes_ge0 tries k : 0 <= successes tries k.
Proof.
elim: tries k => [|more IH] [|j] //=; rewrite ?ler01 //.
by rewrite addr_ge0 // mulr_ge0 // subr_ge0 least_le1.
Qed.

Lemma mixture (a f g : R) : a * f + (1 - a) * g = g + a * (f - g).
Proof. by rewrite mulrBl mul1r mulrBr addrCA. Qed.

Lemma successes_falls tries k : successes tries k.+1 <= successes tries k.
Proof.
have rest : 0 <= 1 - least by rewrite subr_ge0 least_le1.
elim: tries k => [|more IH] [|j] //=; rewrite ?ler01 //.
  apply: le_trans (ler_add (lexx _) (ler_wpmul2l rest (IH 0%N))) _.
  by case: more {IH} => [|more] /=; rewrite !mulr1 addrC subrK.
by rewrite ler_add // ler_wpmul2l.
Qed.

(** Draws are independent: the probability of any draws in order is the product of theirs, but for what is missing where the
    attempts run out, which is at most the chance of too few successes. *)
Theorem launch_order tries past ys :
  product ys * successes tries (size ys) <= drawn tries past ys <= product ys.
Proof.
elim: tries past ys => [|more IH] past [|y ys] /=; rewrite ?mulr1 ?lexx //.
  by rewrite mulr0 lexx mulr_ge0 // product_ge0.
set a := rate past; have a0 : 0 <= a by apply: le_trans least_ge0 (rate_least past).
have a1 : 0 <= 1 - a by rewrite subr_ge0 rate_most.
have /andP[lo hi] := IH (rcons past (Some y)) ys.
have /andP[low high] := IH (rcons past None) (y :: ys).
apply/andP; split.
  apply: le_trans (ler_add (ler_wpmul2l (mulr_ge0 (mu_ge0 y) a0) lo) (ler_wpmul2l a1 low)) => /=.
  set f := successes more _; set g := successes more _; set c := product ys.
  have -> : mu y * a * (c * f) + (1 - a) * (mu y * c * g) = mu y * c * (a * f + (1 - a) * g).
    by rewrite mulrDr mulrACA [(1 - a) * _]mulrCA.
  rewrite ler_wpmul2l ?mulr_ge0 ?product_ge0 // !mixture ler_add2l ler_wpmul2r ?rate_least //.
  by rewrite subr_ge0 successes_falls.
apply: le_trans (ler_add (ler_wpmul2l (mulr_ge0 (mu_ge0 y) a0) hi) (ler_wpmul2l a1 high)) _ => /=.
by rewrite [mu y * a * _]mulrAC [_ * a]mulrC -mulrDl addrC subrK mul1r.
Qed.

End LaunchOrder.
