(** Deterministic transducers: bytes in, words out, one more word at the end. *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Transducer.
Variables (C S T : Type).

(** [step] goes from a state by a byte to a state, and emits a word; [ends] is what the end of a text emits, if it may end. *)
Variable step : S -> C -> option (S * seq T).
Variable ends : S -> option (seq T).

Definition emitting (word : seq T) (last : S * seq T) : S * seq T := (last.1, word ++ last.2).

Fixpoint reads (s : S) w : option (S * seq T) :=
  if w is c :: z then obind (fun after => omap (emitting after.2) (reads after.1 z)) (step s c) else Some (s, [::]).

(** What a whole text emits. *)
Definition output s w : option (seq T) := obind (fun last => omap (cat last.2) (ends last.1)) (reads s w).

(** Reading one text after the other is reading both: what tokens lead to and emit depends on their bytes alone. *)
Theorem reads_cat s u w : reads s (u ++ w) = obind (fun after => omap (emitting after.2) (reads after.1 w)) (reads s u).
Proof.
elim: u s => [|c u IH] s /=; first by case: (reads s w) => [[]|].
case: (step s c) => [[r e]|] //=; rewrite IH; case: (reads r u) => [[r' e']|] //=.
by case: (reads r' w) => [[r'' e'']|] //=; rewrite /emitting catA.
Qed.

Lemma reads_rcons s u c : reads s (rcons u c) = obind (fun after => omap (emitting after.2) (step after.1 c)) (reads s u).
Proof.
by rewrite -cats1 reads_cat; case: (reads s u) => [[r e]|] //=; case: (step r c) => [[r' e']|] //=; rewrite /emitting /= cats0.
Qed.

Lemma output_cat s u w : output s (u ++ w) = obind (fun after => omap (cat after.2) (output after.1 w)) (reads s u).
Proof.
rewrite /output reads_cat; case: (reads s u) => [[r e]|] //=; case: (reads r w) => [[r' e']|] //=.
by case: (ends r') => [last|] //=; rewrite catA.
Qed.

End Transducer.
