(** Masks of a grammar over terminals, and of tokens over bytes: exact, with no dead end (grammar-theory.md, section 7).

    The decision about a token is one about its bytes, so no assumption on how a text is spelled is needed (path independence). *)

From mathcomp Require Import all_ssreflect.
From Phi Require Import transducer lexing.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Mask.
Variables (C S T K X : Type).

(** A lexer: any transducer, as that of longest match is one (lexing.v). *)
Variable step : S -> C -> option (S * seq T).
Variable ends : S -> option (seq T).
Variable begin : S.

(** A grammar, as a machine that reads terminals one by one and says whether the text may end: a parser, or the word itself. *)
Variable shift : X -> T -> X.
Variable bottom : X.
Variable final : X -> Prop.

(** The bytes of a token. *)
Variable bytes : K -> seq C.

Local Notation reads := (reads step).

Definition in_grammar word : Prop := final (foldl shift bottom word).

(** A text is a member if the lexer cuts it into the terminals of a word of the grammar. *)
Definition member w : Prop := exists2 word, output step ends begin w = Some word & in_grammar word.

(** What is kept between two tokens: a state of the transducer and a configuration of the parser. *)
Definition place : Type := S * X.
Definition origin : place := (begin, bottom).

Definition go (here : place) w : option place :=
  omap (fun read => (read.1, foldl shift here.2 read.2)) (reads here.1 w).

Definition may_end (here : place) : Prop :=
  if ends here.1 is Some last then final (foldl shift here.2 last) else False.

(** A place is live if some text leads from it to an end. *)
Definition live (here : place) : Prop := exists z there, go here z = Some there /\ may_end there.

(** The mask: a token is allowed where its bytes lead to a live place. *)
Definition allowed (here : place) (v : K) : Prop := exists2 there, go here (bytes v) = Some there & live there.

Lemma go_cat here u w : go here (u ++ w) = obind (go^~ w) (go here u).
Proof.
rewrite /go reads_cat; case: (reads here.1 u) => [[s e]|] //=.
by case: (reads s w) => [[r f]|] //=; rewrite /= foldl_cat.
Qed.

(** The checker: reading the bytes of a text and ending is membership. *)
Theorem checker w : member w <-> exists2 there, go origin w = Some there & may_end there.
Proof.
rewrite /member /output /go /may_end /in_grammar; case: (reads begin w) => [[s e]|] /=; last by split=> -[].
split=> [[word]|[there [<-] /=]]; case ending : (ends s) => [last|] //=.
- by case=> <-; rewrite foldl_cat => fine; exists (s, foldl shift bottom e); rewrite //= ending.
- by exists (e ++ last); rewrite ?foldl_cat.
Qed.

(** Stack invariance: what is live depends on the state and the configuration, not on how they came about. *)
Theorem stack_invariance u w here : go origin u = Some here -> go origin w = Some here ->
  (forall z, member (u ++ z) <-> member (w ++ z)).
Proof.
move=> leads_u leads_w z; split=> /checker[there]; rewrite go_cat ?leads_u ?leads_w /= => leads fine; apply/checker;
  by exists there; rewrite // go_cat ?leads_u ?leads_w.
Qed.

(** The mask is exact: a token is allowed if and only if some text goes on with its bytes and is a member. *)
Theorem mask_characterization w here v : go origin w = Some here ->
  allowed here v <-> exists z, member (w ++ bytes v ++ z).
Proof.
move=> leads; split=> [[there leads_v [z [last [leads_z fine]]]]|[z /checker[last]]].
  by exists z; apply/checker; exists last; rewrite // go_cat leads /= go_cat leads_v.
rewrite go_cat leads /= go_cat; case leads_v : (go here (bytes v)) => [there|] //= leads_z fine.
by exists there => //; exists z, last.
Qed.

(** Classes of tokens: what leads from a state to the same state and emits the same terminals is allowed together, under every
    configuration. So one decision is made for each pair of target and word, not for each token. *)
Theorem classes s u v x : reads s (bytes u) = reads s (bytes v) -> allowed (s, x) u <-> allowed (s, x) v.
Proof. by move=> same; rewrite /allowed /go /= same. Qed.

(** The end of sequence is allowed if and only if the text is a member. *)
Theorem end_characterization w here : go origin w = Some here -> may_end here <-> member w.
Proof.
move=> leads; split=> [fine|]; first by apply/checker; exists here.
by case/checker=> there; rewrite leads => -[<-].
Qed.

(** What a masked decoder writes: tokens that are allowed one after the other, and then the end. *)
Fixpoint decodes (here : place) (vs : seq K) : Prop :=
  if vs is v :: us then exists there, [/\ go here (bytes v) = Some there, live there & decodes there us]
  else may_end here.

Definition text (vs : seq K) : seq C := flatten (map bytes vs).

Lemma decodes_text here vs : decodes here vs <-> exists2 there, go here (text vs) = Some there & may_end there.
Proof.
elim: vs here => [|v us IH] here.
  have stays : go here (text [::]) = Some here by rewrite /go /=; case: here.
  by split=> [fine|[there]]; [exists here | rewrite stays => -[<-]].
rewrite [text _]/= go_cat; split=> [[next [leads _ /IH[there leads_us fine]]]|[there]].
  by exists there; rewrite // leads.
case leads : (go here (bytes v)) => [next|] //= leads_us fine; exists next; split=> //.
  by exists (text us), there.
by apply/IH; exists there.
Qed.

(** Soundness and completeness: the sequences that a masked decoder can write are the tokenizations of members, all of them. *)
Theorem sound_and_complete vs : decodes origin vs <-> member (text vs).
Proof. by rewrite checker decodes_text. Qed.

(** No dead end: where a token was allowed, the text can be completed; by tokens, if every byte is one. *)
Theorem no_dead_end here v : allowed here v -> (forall c, exists u, bytes u = [:: c]) ->
  exists vs, exists2 there, go here (bytes v) = Some there & decodes there vs.
Proof.
move=> [there leads [z [last [leads_z fine]]]] single.
have [vs spelled] : exists vs, text vs = z.
  elim: z {leads_z} => [|c z [vs spelled]]; first by exists [::].
  by have [u one] := single c; exists (u :: vs); rewrite /text /= one -spelled.
by exists vs, there => //; apply/decodes_text; exists last; rewrite // spelled.
Qed.

(** The mask of the paper asks for less: that the parser survives what the token emits with one terminal that may come next. *)
Definition promised (s : S) (t : T) : Prop :=
  exists z last word rest, [/\ reads s z = Some (last, word), ends last = Some rest & exists more, word ++ rest = t :: more].

Definition survives (x : X) (word : seq T) : Prop := exists more, final (foldl shift x (word ++ more)).

Definition weakly_allowed (here : place) (v : K) : Prop := exists s word, reads here.1 (bytes v) = Some (s, word) /\
  (final (foldl shift here.2 word) \/ exists2 t, promised s t & survives here.2 (rcons word t)).

(** It allows all that the exact mask allows (over-approximation). *)
Theorem over_approximation here v : allowed here v -> weakly_allowed here v.
Proof.
case=> there; rewrite /go; case token : (reads here.1 (bytes v)) => [[s word]|] //= [<-] [z [last []]].
rewrite /go /=; case rest : (reads s z) => [[r more]|] //= [<-]; rewrite /may_end /=.
case ending : (ends r) => [e|] // fine; exists s, word; split=> //.
case whole : (more ++ e) => [|t tail].
  by left; move: fine; rewrite -foldl_cat whole.
right; exists t; first by exists z, r, more, e; split=> //; exists tail.
by exists tail; rewrite cat_rcons -whole !foldl_cat.
Qed.

End Mask.

(** ** The published transducer

    It begins in the start of the automaton, without a state of its own for "nothing is pending". With the one terminal [(ab)*a]
    it lets the text [ab] end, of which longest match has no cut. *)
Section Published.

Definition a_step (q : bool) (c : bool) : option bool :=
  if q then (if c then None else Some false) else (if c then Some true else None).
(** States: [false] is the start, [true] is after an [a] and a lexeme. Bytes: [true] is [a], [false] is [b]. *)
Definition a_label (q : bool) : option unit := if q then Some tt else None.

Definition published_end (s : option bool) : option (seq unit) :=
  if s is Some true then Some [:: tt] else if s is Some false then Some [::] else None.

Theorem published_accepts : published_end (run a_step false [:: true; false]) = Some [::].
Proof. by []. Qed.

Theorem longest_match_does_not : terminals a_step false a_label [:: true; false] = None.
Proof. by []. Qed.

Theorem ours_does_not : output (lexing.step a_step false a_label) (lexing.ends a_label) (Start _ _) [:: true; false] = None.
Proof. by []. Qed.

End Published.
