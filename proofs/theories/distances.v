(** Distances to the end of what a nonterminal derives, along the paths of an automaton (grammar-theory.md, section 6.2). *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Distances.
Variables (N T Q : eqType).

(** A context-free grammar: the bodies of each nonterminal. The automaton: [weight t r k] is the least number of tokens by which a
    terminal leads from [r] to [k], if it does. *)
Variable bodies : N -> seq (seq (N + T)).
Variable weight : T -> Q -> Q -> option nat.
Implicit Types (A : N) (x : N + T) (body : seq (N + T)) (r k q : Q) (D : N -> Q -> Q -> option nat).

(** Symbols one after the other, from state to state, each with a number that [W] allows it. *)
Inductive along (W : N + T -> Q -> Q -> nat -> Prop) : seq (N + T) -> Q -> Q -> nat -> Prop :=
| along_nil r : along W [::] r r 0
| along_cons x body r q k m n : W x r q m -> along W body q k n -> along W (x :: body) r k (m + n).

(** Derivations by trees of at most a height, with the tokens of their leaves. *)
Fixpoint derives_by height x r k n : Prop :=
  match x, height with
  | inr t, _ => weight t r k = Some n
  | inl A, h.+1 => exists2 body, body \in bodies A & along (derives_by h) body r k n
  | inl _, 0 => False
  end.

Definition derives A r k n : Prop := exists height, derives_by height (inl A) r k n.

(** What distances say of a symbol. *)
Definition value D x r k : option nat := if x is inl A then D A r k else if x is inr t then weight t r k else None.
Definition valued D x r k n : Prop := value D x r k = Some n.

(** No body has less than its nonterminal. *)
Definition closed D : Prop := forall A body r k n, body \in bodies A -> along (valued D) body r k n ->
  exists2 m, m <= n & D A r k = Some m.

Lemma along_most (W U : N + T -> Q -> Q -> nat -> Prop) body r k n :
  (forall x r k n, W x r k n -> exists2 m, m <= n & U x r k m) ->
  along W body r k n -> exists2 m, m <= n & along U body r k m.
Proof.
move=> most; elim=> {body r k n}[r|x body r q k m n one _ [n' less rest]]; first by exists 0 => //; exact: along_nil.
by have [m' fewer one'] := most _ _ _ _ one; exists (m' + n'); [exact: leq_add | exact: along_cons one' rest].
Qed.

Lemma along_sub (W U : N + T -> Q -> Q -> nat -> Prop) body r k n :
  (forall x r k n, W x r k n -> U x r k n) -> along W body r k n -> along U body r k n.
Proof.
move=> sub; elim=> {body r k n}[r|x body r q k m n /sub one _ rest]; first exact: along_nil.
exact: along_cons one rest.
Qed.

(** Closed numbers are below those of all derivations. *)
Lemma closed_least D height x r k n : closed D -> derives_by height x r k n ->
  exists2 m, m <= n & value D x r k = Some m.
Proof.
move=> is_closed; elim: height x r k n => [|h IH] [A|t] r k n //=; try by exists n.
case=> body rule /(along_most (U := valued D))[|m less /(is_closed _ _ _ _ _ rule)[l fewer ->]] //.
by exists l; rewrite // (leq_trans fewer).
Qed.

(** The least number, attained; and none where nothing is derived. *)
Definition shortest D : Prop := forall A r k,
  (forall n, D A r k = Some n <-> derives A r k n /\ forall m, derives A r k m -> n <= m)
  /\ (D A r k = None <-> forall n, ~ derives A r k n).

Lemma closed_attained D : closed D -> (forall A r k n, D A r k = Some n -> derives A r k n) -> shortest D.
Proof.
move=> is_closed attained A r k; have least m : derives A r k m -> exists2 n, n <= m & D A r k = Some n.
  by case=> h /(closed_least is_closed).
split=> [n|]; split.
- by move=> is_n; split=> [|m /least[l less]]; [exact: attained | rewrite is_n => -[->]].
- case=> derived fewest; have [m less is_m] := least _ derived; rewrite is_m; congr Some.
  by apply/eqP; rewrite eqn_leq less fewest //; exact: attained.
- by move=> none n /least[m _]; rewrite none.
- by case value_is : (D A r k) => [n|] // none; case: (none n); exact: attained.
Qed.

(** Each finite number comes from a body whose nonterminals have their numbers before it: the least solution of the equations. *)
Definition justified D : Prop := exists rank : N -> Q -> Q -> nat, forall A r k n, D A r k = Some n ->
  exists2 body, body \in bodies A &
    along (fun x r' k' m => valued D x r' k' m /\ if x is inl B then rank B r' k' < rank A r k else true) body r k n.

Theorem least_solution D : closed D -> justified D -> shortest D.
Proof.
move=> is_closed [rank why]; apply: closed_attained => // A r k n is_n; exists (rank A r k).+1.
have bounded h : forall B q l m, rank B q l < h -> D B q l = Some m -> derives_by h (inl B) q l m.
  elim: h => // h IH B q l m low is_m; have [body rule path] := why _ _ _ _ is_m; exists body => //.
  apply: along_sub path => -[E|t] r' k' m' [is_m' below]; last by case: h {IH low}.
  by apply: IH => //; exact: leq_trans below _.
exact: bounded.
Qed.

End Distances.
