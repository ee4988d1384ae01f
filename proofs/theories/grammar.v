(** Context-free grammars, and two witnesses that a program can check: a derivation for a word, and a set of items that is closed
    under the rules of Earley's algorithm for "no word of this automaton is derived". *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Grammar.

(** Symbols are numbers; those that no rule has as its head are terminals. *)
Definition rule : Type := nat * seq nat.
Variable is_terminal : nat -> bool.
Variable rules : seq rule.

(** What a symbol derives, and what a sequence of symbols does. *)
Inductive derives : nat -> seq nat -> Prop :=
| Leaf t : is_terminal t -> derives t [:: t]
| Node head body u of (head, body) \in rules & ~~ is_terminal head & spells body u : derives head u
with spells : seq nat -> seq nat -> Prop :=
| Done : spells [::] [::]
| Next symbol rest u v of derives symbol u & spells rest v : spells (symbol :: rest) (u ++ v).

Scheme derives_induction := Minimality for derives Sort Prop
with spells_induction := Minimality for spells Sort Prop.
Combined Scheme derivation_induction from derives_induction, spells_induction.

Lemma spells_cons x xs w : spells (x :: xs) w -> exists u v, [/\ w = u ++ v, derives x u & spells xs v].
Proof. by inversion 1 as [|symbol rest u v]; exists u, v. Qed.

Lemma spells_cat xs ys w : spells (xs ++ ys) w -> exists u v, [/\ w = u ++ v, spells xs u & spells ys v].
Proof.
elim: xs w => [|x xs IH] w /=; first by exists [::], w; split=> //; constructor.
case/spells_cons=> u [_ [-> one /IH[v [z [-> more rest]]]]].
by exists (u ++ v), z; split; rewrite ?catA //; constructor.
Qed.

(** ** A leftmost derivation: the rules, by their numbers, that replace the first symbol that is no terminal. *)
Fixpoint leading (stack : seq nat) : seq nat * seq nat :=
  if stack is t :: rest then
    if is_terminal t then let: (front, others) := leading rest in (t :: front, others) else ([::], stack)
  else ([::], [::]).

Fixpoint derived (steps : seq nat) stack : option (seq nat) :=
  let: (front, others) := leading stack in
  match steps, others with
  | [::], [::] => Some front
  | r :: more, symbol :: rest =>
      if (r < size rules) && ((nth (0, [::]) rules r).1 == symbol) then
        omap (cat front) (derived more ((nth (0, [::]) rules r).2 ++ rest))
      else None
  | _, _ => None
  end.

Lemma leading_spells stack front others w : leading stack = (front, others) -> spells others w -> spells stack (front ++ w).
Proof.
elim: stack front others => [|t stack IH] front others /=; first by case=> <- <-.
case: ifP => [terminal|_]; last by case=> <- <-.
case found : (leading stack) => [f o] [<- <-] rest; rewrite (_ : (t :: f) ++ w = [:: t] ++ (f ++ w)) //.
by apply: Next; [exact: Leaf | exact: IH found rest].
Qed.

Lemma leading_other stack front x others : leading stack = (front, x :: others) -> ~~ is_terminal x.
Proof.
elim: stack front => [|t stack IH] front //=; case: ifP => [terminal|other]; last by case=> _ <- _; rewrite other.
by case found : (leading stack) => [f o] [_ same]; rewrite same in found; apply: IH found.
Qed.

Theorem derived_spells steps stack w : derived steps stack = Some w -> spells stack w.
Proof.
elim: steps stack w => [|r more IH] stack w /=; case found : (leading stack) => [front [|symbol rest]] //.
  by case=> <-; rewrite -[front]cats0; apply: leading_spells found _; constructor.
case: ifP => // /andP[here /eqP same]; case next : (derived _ _) => [v|] //= [<-].
apply: (leading_spells found); have [u [z [-> body others]]] := spells_cat (IH _ _ next).
constructor=> //; apply: Node body; last exact: leading_other found.
by rewrite -same -surjective_pairing mem_nth.
Qed.

(** ** Items

    Places [P] between terminals, with arcs: a finite automaton. [item head rest i j] says that a rule of [head] was begun at [i],
    and that [rest] of its body is still to be read at [j]. *)
Section Items.
Variable P : Type.
Variable arc : P -> nat -> P -> Prop.
Variable item : nat -> seq nat -> P -> P -> Prop.

Fixpoint path i w k : Prop := if w is t :: v then exists2 j, arc i t j & path j v k else i = k.

Lemma path_cat i u v k : path i (u ++ v) k <-> exists2 j, path i u j & path j v k.
Proof.
elim: u i => [|t u IH] i /=; first by split=> [there|[j <-]]; first exists i.
split=> [[m one /IH[j first second]]|[j [m one first] second]]; first by exists j => //; exists m.
by exists m => //; apply/IH; exists j.
Qed.

(** A set of items is closed under reading a terminal, under beginning the rules of a symbol, and under completing it. *)
Hypothesis scans : forall head t rest i j k, is_terminal t -> item head (t :: rest) i j -> arc j t k -> item head rest i k.
Hypothesis predicts : forall head x rest i j body, ~~ is_terminal x -> item head (x :: rest) i j -> (x, body) \in rules ->
  item x body j j.
Hypothesis completes : forall head x rest i j k, ~~ is_terminal x -> item head (x :: rest) i j -> item x [::] j k ->
  item head rest i k.

(** Then it holds all that can be derived along the arcs. *)
Lemma closed_items :
  (forall x w, derives x w -> forall head rest i j k, item head (x :: rest) i j -> path j w k -> item head rest i k) /\
  (forall xs w, spells xs w -> forall head rest i j k, item head (xs ++ rest) i j -> path j w k -> item head rest i k).
Proof.
apply: derivation_induction => [t terminal head rest i j k here [m one <-]|x body w known other _ IH head rest i j k here along||
    x xs u v _ first _ second head rest i j k here /path_cat[m along_u along_v]].
- exact: scans here one.
- apply: (completes other here); apply: IH along; rewrite cats0; exact: predicts here known.
- by move=> head rest i j k here <-.
- exact: second (first _ _ _ _ _ here along_u) along_v.
Qed.

(** So where no item of the root has come to a last place, no word that leads there is derived. *)
Theorem nothing_derived root start i (last : P -> Prop) : item root [:: start] i i ->
  (forall k, item root [::] i k -> ~ last k) -> forall w k, path i w k -> last k -> ~ derives start w.
Proof. by move=> begins none w k along ends derived; apply: (none k) => //; apply: (closed_items.1) begins along. Qed.

End Items.

End Grammar.
