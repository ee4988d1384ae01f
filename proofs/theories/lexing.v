(** Longest match, one byte ahead, and the transducer that does it (grammar-theory.md, sections 2.2, 3.1 and 4). *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Automaton.
Variables (C Q T : Type).

(** The automaton of all lexemes: [delta] goes from a state by a byte to a state from which a lexeme can be completed, and [label]
    is the terminal of a lexeme that ends in a state. No lexeme is empty. *)
Variable delta : Q -> C -> option Q.
Variable start : Q.
Variable label : Q -> option T.
Hypothesis no_empty_lexeme : label start = None.

Definition run q w : option Q := foldl (fun s c => obind (delta^~ c) s) (Some q) w.

Lemma run_none w : foldl (fun s c => obind (delta^~ c) s) None w = None.
Proof. by elim: w. Qed.

Lemma run_rcons q w c : run q (rcons w c) = obind (delta^~ c) (run q w).
Proof. by rewrite /run -cats1 foldl_cat. Qed.

(** ** The definition

    What is read of a text: the terminals that are certain, and the rest that is pending, in reverse order of neither. *)
Definition cut_step (read : seq T * seq C) c : option (seq T * seq C) :=
  let: (certain, rest) := read in
  if run start (rcons rest c) is Some _ then Some (certain, rcons rest c)
  else if obind label (run start rest) is Some t then
    if delta start c is Some _ then Some (rcons certain t, [:: c]) else None
  else None.

Definition cut w : option (seq T * seq C) := foldl (fun s c => obind (cut_step^~ c) s) (Some ([::], [::])) w.

(** The terminals of a text that is over: nothing may be pending but a lexeme. *)
Definition cut_end (read : seq T * seq C) : option (seq T) :=
  let: (certain, rest) := read in
  if rest is [::] then Some certain else omap (rcons certain) (obind label (run start rest)).

Definition terminals w : option (seq T) := obind cut_end (cut w).

(** ** The transducer

    Its states are those of the automaton, and one apart, [None], in which nothing is pending. *)
Definition step (s : option Q) c : option (option Q * seq T) :=
  if s isn't Some q then omap (fun r => (Some r, [::])) (delta start c)
  else if delta q c is Some r then Some (Some r, [::])
  else if label q is Some t then omap (fun r => (Some r, [:: t])) (delta start c) else None.

Fixpoint reads (s : option Q) w : option (option Q * seq T) :=
  if w is c :: z then
    obind (fun after => omap (fun last => (last.1, after.2 ++ last.2)) (reads after.1 z)) (step s c)
  else Some (s, [::]).

Definition ends (s : option Q) : option (seq T) := if s is Some q then omap (fun t => [:: t]) (label q) else Some [::].

(** Reading one text after the other is reading both: what tokens lead to and emit depends on their bytes alone. *)
Theorem reads_cat s u w :
  reads s (u ++ w) = obind (fun after => omap (fun last => (last.1, after.2 ++ last.2)) (reads after.1 w)) (reads s u).
Proof.
elim: u s => [|c u IH] s /=; first by case: (reads s w) => [[]|].
case: (step s c) => [[r e]|] //=; rewrite IH; case: (reads r u) => [[r' e']|] //=.
by case: (reads r' w) => [[r'' e'']|] //=; rewrite catA.
Qed.

(** The state that stands for a rest. *)
Definition standing rest : option Q := if rest is [::] then None else run start rest.

Lemma standing_rcons rest c : standing (rcons rest c) = run start (rcons rest c).
Proof. by case: rest. Qed.

(** Of every rest that is pending there is a state. *)
Lemma cut_rest w certain rest : cut w = Some (certain, rest) -> rest = [::] \/ exists q, run start rest = Some q.
Proof.
elim/last_ind: w certain rest => [|w c IH] certain rest; first by case=> _ <-; left.
rewrite /cut -cats1 foldl_cat -/(cut w) /=; case: (cut w) => [[g r]|] //=.
case longer : (run start (rcons r c)) => [q|]; first by case=> _ <-; right; exists q.
case: (obind label (run start r)) => [t|] //; case one : (delta start c) => [q|] // [_ <-].
by right; exists q; rewrite /run /= one.
Qed.

(** The transducer emits what longest match cuts, byte by byte, and dies where there is no cut. *)
Theorem transducer w : reads None w = omap (fun read => (standing read.2, read.1)) (cut w).
Proof.
elim/last_ind: w => [|w c IH] //; rewrite -cats1 reads_cat IH /cut foldl_cat -/(cut w).
case found : (cut w) => [[certain rest]|] //=.
case: rest found => [|b rest] found.
  rewrite /standing /run /= no_empty_lexeme; case one : (delta start c) => [r|] //=.
  by rewrite one cats0.
have [//|[q there]] := cut_rest found; rewrite [standing _]/= there run_rcons there /=.
case longer : (delta q c) => [r|] /=; first by rewrite -rcons_cons run_rcons there /= longer cats0.
case: (label q) => [t|] //; case one : (delta start c) => [r|] //=.
by rewrite /run /= one cats1.
Qed.

(** And at the end of a text. *)
Corollary transducer_end w : terminals w =
  obind (fun read => omap (fun last => read.2 ++ last) (ends read.1)) (reads None w).
Proof.
rewrite transducer /terminals; case found : (cut w) => [[certain rest]|] //=.
case: rest found => [|b rest] found /=; first by rewrite cats0.
have [//|[q there]] := cut_rest found; rewrite there /=; case: (label q) => [t|] //=.
by rewrite cats1.
Qed.

End Automaton.
