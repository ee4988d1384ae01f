(** Preprocessing, as it is computed: which words the top of a stack accepts, which it rejects, and which depend on what lies
    below (grammar-theory.md, section 5.2; Alg. 5 of the paper). *)

From mathcomp Require Import all_ssreflect.
From Phi Require Import pushdown.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Inductive verdict := Accepted | Rejected | Dependent.

Section Preprocessing.
Variables (Q N : eqType) (T : Type).
Variable reductions : Q -> T -> seq (N * nat).
Variable goto : Q -> N -> option Q.
Variable shifts : Q -> T -> option Q.
Implicit Types (t : T) (w z : seq T) (s u v top below : seq Q).

Local Notation reduce := (reduce reductions goto).
Local Notation shift := (shift shifts).
Local Notation reduced := (reduced reductions goto).
Local Notation beyond := (beyond reductions).
Local Notation read := (read reductions goto shifts).
Local Notation opens := (opens reductions goto shifts).
Local Notation falls := (falls reductions goto shifts).

(** What reductions come to, in so many rounds; [settled] says that no more rounds are needed. *)
Definition rounds n t (stacks : seq (seq Q)) : seq (seq Q) :=
  iter n (fun met => undup (met ++ flatten (map (reduce t) met))) stacks.
Definition settled t (met : seq (seq Q)) : bool := all (fun s => all (mem met) (reduce t s)) met.

(** The stacks after a word, and whether some run met the unknown; nothing, where the rounds were too few. *)
Fixpoint after n w known unknown : option (seq (seq Q) * bool) :=
  if w is t :: z then
    let met := rounds n t known in
    if settled t met then
      after n z (flatten (map (shift t) met)) (unknown || has (fun s => beyond t s != [::]) met)
    else None
  else Some (known, unknown).

Definition decide n w top : option verdict :=
  omap (fun found => if nilp found.1 then if found.2 then Dependent else Rejected else Accepted)
    (after n w [:: top] false).

Lemma rounds_reduced n t stacks u : u \in rounds n t stacks -> exists2 s, s \in stacks & reduced t s u.
Proof.
elim: n u => [|n IH] u; first by exists u => //; exact: reduced_none.
rewrite /= mem_undup mem_cat => /orP[/IH //|/flatten_mapP[v /IH[s from run] one]].
by exists s => //; apply: reduced_trans run _; apply: reduced_more one _; exact: reduced_none.
Qed.

Lemma rounds_first n t stacks s : s \in stacks -> s \in rounds n t stacks.
Proof. by move=> from; elim: n => //= n IH; rewrite mem_undup mem_cat IH. Qed.

Lemma reduced_rounds n t stacks s u : settled t (rounds n t stacks) -> s \in stacks -> reduced t s u ->
  u \in rounds n t stacks.
Proof.
move=> /allP closed /(rounds_first n t) from run; elim: run from => // {u}s v u one _ IH from.
by apply: IH; move/allP: (closed s from); apply.
Qed.

Lemma after_correct n w known unknown found : after n w known unknown = Some found ->
  (forall u, u \in found.1 <-> exists2 s, s \in known & read w s u)
  /\ (found.2 <-> unknown \/ exists2 s, s \in known & opens w s).
Proof.
elim: w known unknown => [|t z IH] known unknown /=.
  case=> <- /=; split=> [u|]; first by split=> [from|[s from ->]] //; exists u.
  by split=> [|[//|[s _ []]]]; left.
case: ifP => // closed /IH[of_words of_unknown] {IH}.
have met s u : s \in known -> reduced t s u -> u \in rounds n t known by apply: reduced_rounds.
split=> [u|].
  rewrite of_words; split=> [[v /flatten_mapP[x /rounds_reduced[s from run] one] rest]|[s from [v [x run one] rest]]].
    by exists s => //; exists v => //; exists x.
  by exists v => //; apply/flatten_mapP; exists x => //; exact: met from run.
rewrite of_unknown; split.
  case=> [/orP[|/hasP[v /rounds_reduced[s from run] past]]|[v /flatten_mapP[x /rounds_reduced[s from run] one] more]].
  - by left.
  - by right; exists s => //; left; exists v.
  - by right; exists s => //; right; exists v => //; exists x.
case=> [->|[s from [[v run past]|[v [x run one] more]]]]; first by left.
- by left; apply/orP; right; apply/hasP; exists v => //; exact: met from run.
- by right; exists v => //; apply/flatten_mapP; exists x => //; exact: met from run.
Qed.

(** What is decided from the top is right for every stack with this top; and what depends goes on from what lies below. *)
Theorem preprocessing n w top verdict : top != [::] -> decide n w top = Some verdict ->
  forall below, match verdict with
  | Accepted => exists u, read w (top ++ below) u
  | Rejected => forall u, ~ read w (top ++ below) u
  | Dependent => forall u, read w (top ++ below) u <-> falls w top below u
  end.
Proof.
move=> some; rewrite /decide; case found : (after n w [:: top] false) => [[stacks unknown]|] //= [<-] below.
have [/= of_words of_unknown] := after_correct found.
have one u : read w top u <-> u \in stacks.
  by rewrite of_words; split=> [runs|[s]]; [exists top; rewrite ?mem_head | rewrite inE => /eqP ->].
case: stacks {found of_words} one => [|u stacks] one /=; last first.
  by exists (u ++ below); apply: invariance; apply/one; rewrite mem_head.
have stuck v : ~ read w top v by move/one.
case: unknown of_unknown => of_unknown.
  by move=> u; rewrite decided_or_below //; split=> [[[v /stuck]|]|]; [| |right].
move=> u; apply: over_the_top => // meets; suff : false by [].
by apply/of_unknown; right; exists top; rewrite ?mem_head.
Qed.

End Preprocessing.

(** Nested brackets around an [x]: the terminals are 0 for an opening bracket, 1 for [x], 2 for a closing one. The top is an [x] on
    an opening bracket: one closing bracket is accepted, no opening one, and whether two are depends on what lies below. *)
Section Brackets.

Definition rules (q t : nat) : seq (unit * nat) :=
  if t == 2 then if q == 2 then [:: (tt, 0)] else if q == 4 then [:: (tt, 2)] else [::] else [::].
Definition goes (q : nat) (head : unit) : option nat := nth None [:: Some 5; Some 3] q.
Definition shifted (q t : nat) : option nat :=
  if q <= 1 then nth None [:: Some 1; Some 2] t else if (q, t) == (3, 2) then Some 4 else None.

Example brackets : [seq decide rules goes shifted 3 w [:: 2; 1] | w <- [:: [:: 2]; [:: 0]; [:: 2; 2]; [:: 2; 0]]]
  = [:: Some Accepted; Some Rejected; Some Dependent; Some Rejected].
Proof. by vm_compute. Qed.

End Brackets.
