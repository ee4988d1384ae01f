(** Terminals that may come next: those that head the output, and those that some text emits alone (grammar-theory.md,
    section 3.2). *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Singletons.
Variables (C Q T : Type).

(** The automaton of all lexemes, and the transducer of longest match over it; [None] is its state in which nothing is pending. *)
Variable delta : Q -> C -> option Q.
Variable start : Q.
Variable label : Q -> option T.
Implicit Types (s : option Q) (c : C) (w z : seq C) (t : T).

Definition step s c : option (option Q * seq T) :=
  if s isn't Some q then omap (fun r => (Some r, [::])) (delta start c)
  else if delta q c is Some r then Some (Some r, [::])
  else if label q is Some t then omap (fun r => (Some r, [:: t])) (delta start c) else None.

Fixpoint reads s w : option (option Q * seq T) :=
  if w is c :: z then
    obind (fun after => omap (fun last => (last.1, after.2 ++ last.2)) (reads after.1 z)) (step s c)
  else Some (s, [::]).

Definition ends s : option (seq T) := if s is Some q then omap (fun t => [:: t]) (label q) else Some [::].

(** Terminals with which the output may begin: the least solution of the equations. *)
Inductive producible : option Q -> T -> Prop :=
| by_end q t : label q = Some t -> producible (Some q) t
| by_step s c r t more : step s c = Some (r, t :: more) -> producible s t
| by_silence s c r t : step s c = Some (r, [::]) -> producible r t -> producible s t.

(** A terminal heads what is emitted of some text and its end. *)
Definition heads s t : Prop :=
  exists z last word rest more, [/\ reads s z = Some (last, word), ends last = Some rest & word ++ rest = t :: more].

(** A terminal is all that some text emits. *)
Definition alone s t : Prop := exists z last, reads s z = Some (last, [:: t]).

Lemma step_emits s c r word : step s c = Some (r, word) -> (word = [::] \/ exists t, word = [:: t]) /\ r <> None.
Proof.
case: s => [q|] /=; last by case: (delta start c) => [q|] //= [<- <-]; split=> //; left.
case: (delta q c) => [q'|]; first by case=> <- <-; split=> //; left.
case: (label q) => [t|] //; case: (delta start c) => [q'|] //= [<- <-]; split=> //.
by right; exists t.
Qed.

Lemma heads_producible s t : heads s t -> producible s t.
Proof.
case=> z [last [word [rest [more [read ending whole]]]]].
elim: z s word read whole => [|c z IH] s word /=.
  case=> -> <-; case: last ending => [q|] /=; last by case=> <-.
  by case labelled : (label q) => [u|] //= [<-] [<- _]; exact: by_end.
case one : (step s c) => [[r e]|] //=; case others : (reads r z) => [[l e']|] //= [same <-].
have [[e0|[u e1]] _] := step_emits one.
  by rewrite same in others; rewrite e0 in one * => /(IH _ _ others); exact: by_silence one.
by rewrite e1 in one * => -[<- _]; exact: by_step one.
Qed.

(** Every state leads to the end of a lexeme, as in a trimmed automaton. *)
Definition trimmed : Prop := forall q, exists w r t, reads (Some q) w = Some (Some r, [::]) /\ label r = Some t.

(** The least solution is what its words say. *)
Theorem producible_heads s t : trimmed -> producible s t <-> heads s t.
Proof.
move=> trim; split=> [|/heads_producible //]; elim=> {s t}[q t labelled|s c r t more one|s c r t one _].
- by exists [::], (Some q), [::], [:: t], [::]; rewrite /= labelled.
- have [_] := step_emits one; case: r one => // q one _; have [w [r [u [read labelled]]]] := trim q.
  by exists (c :: w), (Some r), (t :: more), [:: u], (more ++ [:: u]); rewrite /= one /= read labelled /= cats0.
- case=> z [last [word [rest [more [read ending whole]]]]].
  by exists (c :: z), last, word, rest, more; rewrite /= one /= read.
Qed.

(** S6: behind every complete lexeme some byte begins another one. *)
Definition followed : Prop :=
  forall q t, label q = Some t -> exists c r, delta q c = None /\ delta start c = Some r.

Lemma alone_producible s t : alone s t -> producible s t.
Proof.
case=> z [last]; elim: z s => [|c z IH] s //=.
case one : (step s c) => [[r e]|] //=; case others : (reads r z) => [[l e']|] //= [same word].
have [[e0|[u e1]] _] := step_emits one.
  by move: word one; rewrite e0 /= => word /by_silence; apply; apply: IH; rewrite others same word.
by move: word one; rewrite e1 => -[-> _] /by_step.
Qed.

(** Where every lexeme can be followed, a terminal may head the output if and only if some text emits exactly that terminal. *)
Theorem producible_alone s t : followed -> producible s t <-> alone s t.
Proof.
move=> follow; split=> [|/alone_producible //].
elim=> {s t}[q t labelled|s c r t more one|s c r t one _ [z [last read]]].
- have [c [r [stops begins]]] := follow _ _ labelled.
  by exists [:: c], (Some r); rewrite /= stops labelled begins.
- exists [:: c], r; rewrite /= one /=; have [[//|[u [_ ->]]] _] := step_emits one.
  by [].
- by exists (c :: z), last; rewrite /= one /= read.
Qed.

Corollary heads_alone s t : trimmed -> followed -> heads s t <-> alone s t.
Proof. by move=> trim follow; rewrite -producible_heads // producible_alone. Qed.

(** The weaker mask of the paper, by terminals that may come next: the word that a text emits is one of the grammar, or begins one
    with such a terminal behind it. *)
Definition allowed_by (next : option Q -> T -> Prop) (grammar : seq T -> Prop) s w : Prop :=
  exists r word, reads s w = Some (r, word) /\ (grammar word \/ exists t more, next r t /\ grammar (word ++ t :: more)).

End Singletons.

(** ** Without S6

    One terminal, [[ab]+], and the grammar of that terminal alone. Nothing begins behind a lexeme that would not make it longer. *)
Section Unfollowed.

(** States: whether a byte was read. Bytes: [true] is [a], [false] is [b]. *)
Definition letters (q c : bool) : option bool := Some true.
Definition lettered (q : bool) : option unit := if q then Some tt else None.
Definition one_terminal (word : seq unit) : Prop := word = [:: tt].

Lemma letters_silent s w r word : reads letters false lettered s w = Some (r, word) -> word = [::].
Proof.
elim: w s r word => [|c w IH] s r word /=; first by case=> _ <-.
by case: s => [q|] /=; case read : (reads _ _ _ _ w) => [[l e]|] //= [_ <-]; exact: IH read.
Qed.

(** By the terminals that some text emits alone every text is forbidden, and with it every token. *)
Theorem singletons_forbid s w : ~ allowed_by letters false lettered (alone letters false lettered) one_terminal s w.
Proof.
by case=> r [word [/letters_silent -> [//|[t [more [[z [last /letters_silent]]]]]]]].
Qed.

(** By heads all are allowed, and rightly: each begins the member that it is. *)
Theorem heads_allow w : allowed_by letters false lettered (producible letters false lettered) one_terminal None w.
Proof.
have more q v : reads letters false lettered (Some q) v = Some (Some (if v is [::] then q else true), [::]).
  by elim: v q => [|c v IH] q //=; rewrite IH; case: v {IH}.
case: w => [|c w]; first (exists None, [::]; split=> //; right; exists tt, [::]; split=> //).
  by apply: (@by_silence _ _ _ _ _ _ None true (Some true)) => //; exact: by_end.
exists (Some true), [::]; split; first by rewrite /= more; case: w.
by right; exists tt, [::]; split=> //; exact: by_end.
Qed.

End Unfollowed.
