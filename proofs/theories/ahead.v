(** Tokens drawn ahead of a step, and used by walks that come later (theory.md, section 5.3, Statement 5.2a).

    Of a prefix that was evaluated, independent draws are kept instead of all probabilities. A walk that chooses the tokens without
    a child takes the first of the draws that is not a child yet, which then is one. *)

From mathcomp Require Import all_ssreflect all_algebra.
From Phi Require Import tree.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Ahead.
Variables (R : realFieldType) (V : finType).

(** The distribution that is drawn from. *)
Variable d : V -> R.
Hypothesis d_sum : \sum_v d v = 1.

(** The tokens that are children by the time that some draws have been taken, these in order. Children may also come about in other
    ways, which depend on the draws by those that were taken; they stay. *)
Variable gone : seq V -> pred V.
Hypothesis gone_taken : forall past v, gone (rcons past v) v.
Hypothesis gone_stays : forall past v x, gone past x -> gone (rcons past v) x.

Implicit Types (past vs ds : seq V).

(** What is taken of draws, one walk after the other. *)
Fixpoint taken past ds : seq V :=
  if ds is x :: others then if gone past x then taken past others else x :: taken (rcons past x) others else [::].

Lemma gone_cat past vs x : gone past x -> gone (past ++ vs) x.
Proof. by elim/last_ind: vs => [|vs v IH] is_gone; rewrite ?cats0 // -rcons_cat gone_stays ?IH. Qed.

(** Each walk takes the first of all draws that is not a child when it comes. *)
Lemma taken_first past vs v ds : prefix (rcons vs v) (taken past ds) ->
  ohead [seq x <- ds | ~~ gone (past ++ vs) x] = Some v.
Proof.
elim: ds past vs => [|x ds IH] past vs /=; first by case: vs.
case is_gone : (gone past x); first by rewrite gone_cat //; apply: IH.
case: vs => [|w vs] /=; case: eqP => //= ->; first by rewrite cats0 is_gone.
by rewrite -cat_rcons gone_cat ?gone_taken //=; apply: IH.
Qed.

(** The probability that, of so many draws, these are taken first, in this order. *)
Definition chance m past vs : R := total m (fun ds => prob (fun=> d) [::] ds * (prefix vs (taken past ds))%:R).

Lemma prob_any s ds : prob (fun=> d) s ds = prob (fun=> d) [::] ds.
Proof. by elim: ds s => [|x ds IH] s //=; rewrite IH [in RHS]IH. Qed.

Lemma chance_none m past : chance m past [::] = 1.
Proof.
elim: m past => [|m IH] past; first by rewrite /chance /= mulr1.
rewrite -[RHS]d_sum; apply: eq_bigr => x _; rewrite -[RHS]mulr1 -[X in _ = _ * X](IH past) -total_scale.
by apply: eq_total => ds _; rewrite /= prob_any !prefix0s mulrA.
Qed.

(** By the first of the draws. *)
Lemma chance_first m past v vs : chance m.+1 past (v :: vs) =
  (\sum_(x | gone past x) d x) * chance m past (v :: vs) + (~~ gone past v)%:R * d v * chance m (rcons past v) vs.
Proof.
rewrite /chance [LHS]/= (bigID (gone past)) /=; congr (_ + _).
  rewrite mulr_suml; apply: eq_bigr => x is_gone; rewrite -total_scale; apply: eq_total => ds _.
  by rewrite prob_any is_gone mulrA.
have [is_gone|fresh] := boolP (gone past v); rewrite ?mul0r ?mul1r /=.
  apply: big1 => x x_fresh; rewrite (negbTE x_fresh) -[RHS](total0 R V m); apply: eq_total => ds _ /=.
  by case: eqP => [same|]; rewrite ?mulr0 //; rewrite -same is_gone in x_fresh.
rewrite (bigD1 v) //= big1 ?addr0 => [|x /andP[x_fresh other]].
  rewrite -total_scale; apply: eq_total => ds _.
  by rewrite prob_any (negbTE fresh) /= eqxx mulrA.
rewrite (negbTE x_fresh) -[RHS](total0 R V m); apply: eq_total => ds _ /=.
by rewrite eq_sym (negbTE other) mulr0.
Qed.

(** After whatever was taken so far, tokens that are no children are taken next in proportion to their probability. *)
Theorem proportional m past vs u v : ~~ gone (past ++ vs) u -> ~~ gone (past ++ vs) v ->
  chance m past (rcons vs u) * d v = chance m past (rcons vs v) * d u.
Proof.
elim: m past vs => [|m IH] past vs fresh_u fresh_v.
  by rewrite /chance; case: vs {fresh_u fresh_v} => *; rewrite /= !mulr0 !mul0r.
case: vs fresh_u fresh_v => [|w vs] fresh_u fresh_v /=.
  rewrite !chance_first !chance_none !mulr1 !mulrDl -!mulrA (IH _ [::]) //; congr (_ + _).
  by rewrite !cats0 in fresh_u fresh_v; rewrite fresh_u fresh_v !mul1r mulrC.
rewrite !chance_first !mulrDl -!mulrA (IH _ (w :: vs)) //; congr (_ + (_ * (_ * _))).
by apply: IH; rewrite cat_rcons.
Qed.

(** The probability that these are taken first, and that a draw is left then. *)
Definition left_over m past vs : R := \sum_(u | ~~ gone (past ++ vs) u) chance m past (rcons vs u).

Lemma next_taken m past vs v : ~~ gone (past ++ vs) v ->
  chance m past (rcons vs v) * (\sum_(u | ~~ gone (past ++ vs) u) d u) = left_over m past vs * d v.
Proof. by move=> fresh; rewrite mulr_sumr mulr_suml; apply: eq_bigr => u u_fresh; rewrite proportional. Qed.

(** So a walk that carries the bound [u], chooses the tokens without a child by their mass, and finds a draw, goes to each of them
    with its probability over [u], which is the step of [thinning]: a free token has the bound one. *)
Theorem drawn_ahead m past vs v u (p : V -> R) (scale : R) : scale != 0 -> (forall x, d x = p x / scale) ->
  ~~ gone (past ++ vs) v -> left_over m past vs != 0 ->
  (\sum_(x | ~~ gone (past ++ vs) x) p x) / u * (chance m past (rcons vs v) / left_over m past vs) = p v / u.
Proof.
move=> scaled scales fresh some.
have same : chance m past (rcons vs v) * (\sum_(x | ~~ gone (past ++ vs) x) p x) = left_over m past vs * p v.
  apply: (mulIf (invr_neq0 scaled)); rewrite -!mulrA -scales -next_taken // mulr_suml; congr (_ * _).
  by apply: eq_bigr => x _; rewrite scales.
by rewrite mulf_div [_ * chance _ _ _]mulrC same [u * _]mulrC -mulf_div divff // mul1r.
Qed.

End Ahead.
