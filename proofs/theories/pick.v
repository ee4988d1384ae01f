(** A step of an attempt as it is computed: a coin and a quantile, over whole numbers (theory.md, section 5.3).

    Masses are integers, as floats are when scaled by a power of two. They stand in the order in which they are looked at: those of
    the children of a prefix, probability times bound, and at the end that of the rest, all tokens without a child. *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree thinning.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Implicit Types (masses : seq nat) (i : nat).

(** The first part whose cumulative mass exceeds the quantile. *)
Fixpoint pick masses quantile : option nat :=
  if masses is mass :: others then
    if quantile < mass then Some 0 else omap succn (pick others (quantile - mass))
  else None.

(** The attempt fails where the coin, a number below the bound, is not below the sum of the masses. *)
Definition choose masses coin quantile : option nat := if coin < sumn masses then pick masses quantile else None.

(** Every quantile below the sum picks a part. *)
Lemma pick_some masses quantile : quantile < sumn masses -> pick masses quantile.
Proof.
elim: masses quantile => [|mass others IH] quantile //= below.
case: (ltnP quantile mass) => // above.
by have := IH (quantile - mass); rewrite ltn_subLR // below => /(_ isT); case: (pick _ _).
Qed.

Lemma sum1_ord n : \sum_(k < n) 1 = n.
Proof. by rewrite sum1_card card_ord. Qed.

(** Each part has as many quantiles as it has mass. *)
Lemma count_pick masses i : \sum_(quantile < sumn masses) (pick masses quantile == Some i) = nth 0 masses i.
Proof.
elim: masses i => [|mass others IH] i /=; first by rewrite big_ord0 nth_nil.
rewrite big_split_ord /=.
under eq_bigr do rewrite ltn_ord.
under [X in _ + X]eq_bigr do rewrite ltnNge leq_addr /= addKn.
case: i => [|i] /=.
  rewrite sum1_ord [X in _ + X]big1 ?addn0 // => quantile _.
  by case: (pick _ _).
rewrite big1 // add0n -IH; apply: eq_bigr => quantile _.
by case: (pick _ _).
Qed.

(** Coins that let the attempt go on: as many as the masses sum to. *)
Lemma count_coin bound sum : sum <= bound -> \sum_(coin < bound) (coin < sum) = sum.
Proof.
move=> /subnKC <-; rewrite big_split_ord /=.
under eq_bigr do rewrite ltn_ord.
under [X in _ + X]eq_bigr do rewrite ltnNge leq_addr.
by rewrite sum1_ord big1 ?addn0.
Qed.

Lemma count_pairs (bound total : nat) (good : nat -> bool) (picked : nat -> bool) :
  \sum_(coin < bound) \sum_(quantile < total) (good coin && picked quantile)
  = (\sum_(coin < bound) good coin) * (\sum_(quantile < total) picked quantile).
Proof. by rewrite big_distrlr /=; do 2 (apply: eq_bigr => ? _); rewrite mulnb. Qed.

(** Among all pairs of a coin and a quantile, a part is chosen by as many as its mass times the sum. *)
Theorem count_choose masses bound i : sumn masses <= bound ->
  \sum_(coin < bound) \sum_(quantile < sumn masses) (choose masses coin quantile == Some i)
  = nth 0 masses i * sumn masses.
Proof.
move=> fits; rewrite mulnC -[X in _ = X * _](count_coin fits) -count_pick.
rewrite -(count_pairs _ _ (fun coin => coin < sumn masses) (fun quantile => pick masses quantile == Some i)).
by do 2 (apply: eq_bigr => ? _); rewrite /choose; case: ifP.
Qed.

(** And the attempt fails by all others: the coin alone decides that. *)
Theorem count_fail masses bound : sumn masses <= bound ->
  \sum_(coin < bound) \sum_(quantile < sumn masses) (choose masses coin quantile == None)
  = (bound - sumn masses) * sumn masses.
Proof.
move=> fits; set passes := fun coin => coin < sumn masses.
have all_coins : \sum_(coin < bound) passes coin + \sum_(coin < bound) ~~ passes coin = bound.
  by rewrite -big_split /= -[RHS]sum1_ord; apply: eq_bigr => coin _; case: (passes coin).
rewrite -[X in X - _]all_coins count_coin // addKn -[X in _ = _ * X]sum1_ord.
rewrite -(count_pairs _ _ (fun coin => ~~ passes coin) (fun=> true)).
apply: eq_bigr => coin _; apply: eq_bigr => quantile _; rewrite /choose andbT -/(passes coin); case: ifP => //= _.
by have := pick_some (ltn_ord quantile); case: (pick _ _).
Qed.

Example it_computes : [seq choose [:: 3; 0; 2] coin quantile | coin <- [:: 0; 4; 5], quantile <- [:: 0; 2; 3; 4]]
  = [:: Some 0; Some 0; Some 2; Some 2; Some 0; Some 0; Some 2; Some 2; None; None; None; None].
Proof. by vm_compute. Qed.

Section Chance.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(** The probability of a part, where coin and quantile are uniform. *)
Definition chance masses bound i : rat :=
  (\sum_(coin < bound) \sum_(quantile < sumn masses) (choose masses coin quantile == Some i))%:R
  / (bound * sumn masses)%:R.

Lemma chance_mass masses bound i : (sumn masses <= bound)%N -> chance masses bound i = (nth 0%N masses i)%:R / bound%:R.
Proof.
move=> fits; rewrite /chance count_choose //; have [none|some] := posnP (sumn masses).
  have -> : nth 0%N masses i = 0%N.
    by have := count_pick masses i; rewrite none big_ord0.
  by rewrite mul0n !mul0r.
by rewrite !natrM -mulf_div divff ?mulr1 // pnatr_eq0 -lt0n.
Qed.

(** It is the step of [thinning], for masses and bound that are those of the tree on a common scale. *)
Corollary choose_step (V E : finType) (p : seq V -> V -> rat) (upper : nat -> seq E -> seq V -> rat) m past s u v
    masses bound i (scale : rat) : scale != 0 -> (sumn masses <= bound)%N ->
    bound%:R = scale * u -> (nth 0%N masses i)%:R = scale * (p s v * upper m past (rcons s v)) ->
  chance masses bound i = step p upper m past s u v.
Proof. by move=> scaled fits of_u of_v; rewrite chance_mass // of_u of_v -mulf_div divff // mul1r. Qed.

(** A token of the rest is picked by one quantile more: with its own mass over the bound, the bound of a free token being one. *)
Corollary choose_free children free bound j : (sumn children + sumn free <= bound)%N -> (0 < sumn free)%N ->
  chance (rcons children (sumn free)) bound (size children)
  * ((\sum_(quantile < sumn free) (pick free quantile == Some j))%:R / (sumn free)%:R)
  = (nth 0%N free j)%:R / bound%:R.
Proof.
move=> fits some; rewrite chance_mass ?sumn_rcons // nth_rcons ltnn eqxx count_pick.
by rewrite mulrC mulrA divfK // pnatr_eq0 -lt0n.
Qed.

End Chance.
