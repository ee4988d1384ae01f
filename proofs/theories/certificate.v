(** A compiled grammar and masks of it, with witnesses, and a program that accepts them only if they are exact.

    What there is much of is a function of numbers, so that the program that reads a certificate may keep it in arrays.

    It is extracted (checker/), and run on what [outlines-phi verify --certificate] writes. *)

From mathcomp Require Import all_ssreflect.
From Phi Require Import transducer lexing grammar.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section HoldEquality.
Variables Q T : eqType.
Fixpoint hold_code (h : hold Q T) : seq (option Q * seq T * seq Q) :=
  match h with
  | Start => [::]
  | Alone q => [:: (None, [::], [:: q])]
  | Holding q word k => (Some q, word, [::]) :: hold_code k
  end.
Fixpoint hold_decode (code : seq (option Q * seq T * seq Q)) : option (hold Q T) :=
  match code with
  | [::] => Some (Start Q T)
  | (None, _, [:: q]) :: _ => Some (Alone T q)
  | (Some q, word, _) :: more => omap (Holding q word) (hold_decode more)
  | _ => None
  end.
Lemma hold_codeK : pcancel hold_code hold_decode.
Proof. by elim=> [|q|q word k IH] //=; rewrite IH. Qed.
Definition hold_eqMixin := PcanEqMixin hold_codeK.
Canonical hold_eqType := Eval hnf in EqType (hold Q T) hold_eqMixin.
End HoldEquality.

(** Why a token is allowed: bytes that complete the text, and a derivation. Why it is forbidden: a place in the set of items. *)
Inductive verdict := Allowed of seq nat & seq nat | Forbidden of nat.

Definition verdict_code v : seq nat * seq nat + nat := match v with Allowed z steps => inl (z, steps) | Forbidden i => inr i end.
Definition verdict_decode code := match code with inl (z, steps) => Allowed z steps | inr i => Forbidden i end.
Lemma verdict_codeK : cancel verdict_code verdict_decode.
Proof. by case. Qed.
Definition verdict_eqMixin := CanEqMixin verdict_codeK.
Canonical verdict_eqType := Eval hnf in EqType verdict verdict_eqMixin.

Definition allows v := if v is Allowed _ _ then true else false.

(** A text, the mask after it, whether it may end and why, and why for each pair that tokens lead to: a state and a word. *)
Record sample := Sample {
  text : seq nat;
  mask : nat -> bool;
  end_verdict : verdict;
  outcomes : seq (nat * seq nat * verdict)
}.

Record artefact := Artefact {
  (** The automaton of lexemes: the class of each byte, by state and class the next state or 0, and by state a terminal plus one. *)
  byte_class : seq nat;
  rows : seq (seq nat);
  labels : seq nat;
  first : nat;
  (** The lexer: the class of each byte, by state and class the next state or 0 and the number of a word, what the end emits, plus
      one, and the states of the proven transducer that a state stands for. *)
  column : seq nat;
  targets : seq (seq nat);
  emits : seq (seq nat);
  words : seq (seq nat);
  finals : seq nat;
  begin : nat;
  stands : seq (seq (hold nat nat));
  (** The grammar. *)
  ignored : seq bool;
  rules : seq rule;
  initial : nat;
  (** The vocabulary. *)
  token_count : nat;
  tokens : nat -> seq nat;
  (** Places: a word that is still to be read, and a state of the lexer, none at the end of the text; the arcs from each by a
      terminal, and whether a text may be over there; the place of each state. *)
  place_count : nat;
  places : nat -> seq nat * option nat;
  arcs : nat -> seq (nat * nat);
  lasts : nat -> bool;
  homes : nat -> nat;
  (** By place: the items there, each with its head, what is still to be read, and where it was begun; and by the place where they
      were begun, the heads of those that are complete and where. *)
  items : nat -> seq (nat * seq nat * nat);
  completed : nat -> seq (nat * nat);
  root : nat;
  samples : seq sample
}.

Section Check.
Variable a : artefact.

Definition bytes := 256.
Definition positive (n : nat) : option nat := if n is 0 then None else Some n.
Definition at_class (table : seq (seq nat)) (classes : seq nat) s c : nat := nth 0 (nth [::] table s) (nth 0 classes c).

(** ** What is checked against: longest match by the automaton of lexemes, and the grammar *)

Definition delta q c : option nat := if c < bytes then positive (at_class (rows a) (byte_class a) q c) else None.
Definition label q : option nat := omap predn (positive (nth 0 (labels a) q)).
Definition is_terminal x := x < size (ignored a).
Definition counted (word : seq nat) := [seq t <- word | ~~ nth false (ignored a) t].

Definition member w : Prop :=
  exists2 word, terminals delta (first a) label w = Some word & derives is_terminal (rules a) (initial a) (counted word).

(** ** The lexer is longest match *)

Definition lexer_step s c : option (nat * seq nat) :=
  if c < bytes then
    omap (pair^~ (nth [::] (words a) (at_class (emits a) (column a) s c))) (positive (at_class (targets a) (column a) s c))
  else None.
Definition lexer_ends s : option (seq nat) :=
  omap (fun n => nth [::] (words a) n.-1) (positive (nth 0 (finals a) s)).

Local Notation hold_step := (step delta (first a) label).
Local Notation hold_ends := (ends label).

Definition same_step s h c : bool :=
  match lexer_step s c, hold_step h c with
  | None, None => true
  | Some (s', e), Some (h', e') => (e == e') && (h' \in nth [::] (stands a) s')
  | _, _ => false
  end.

Definition same_lexer : bool :=
  (Start _ _ \in nth [::] (stands a) (begin a)) &&
  all (fun s => all (fun h => (lexer_ends s == hold_ends h) && all (same_step s h) (iota 0 bytes)) (nth [::] (stands a) s))
    (iota 0 (size (stands a))).

(** ** The lexer with ignored terminals left out *)

Definition counted_step s c := omap (fun after => (after.1, counted after.2)) (lexer_step s c).
Definition counted_ends s := omap counted (lexer_ends s).
Local Notation counted_reads := (reads counted_step).

(** ** The places *)

Local Notation place i := (places a i).
Local Notation out i := (arcs a i).
Local Notation is_last i := (lasts a i).

Definition has_arc i t there : bool := has (fun e => [&& e.1 == t, e.2 < place_count a & place e.2 == there]) (out i).

Definition holds_move i (move : nat * seq nat) : bool :=
  match move.2 with
  | [::] =>
      let j := homes a move.1 in
      [&& j < place_count a, place j == ([::], Some move.1), all (fun e => e \in out i) (out j) & is_last j ==> is_last i]
  | t :: v => has_arc i t (v, Some move.1)
  end.

Definition holds_end i (word : seq nat) : bool := if word is t :: v then has_arc i t (v, None) else is_last i.

Definition holds_place i : bool :=
  match place i with
  | (t :: v, s) => has_arc i t (v, s)
  | ([::], None) => is_last i
  | ([::], Some s) =>
      all (holds_move i) (undup (pmap (counted_step s) (iota 0 bytes))) && oapp (holds_end i) true (counted_ends s)
  end.

Definition good_places : bool := all holds_place (iota 0 (place_count a)).

(** ** The items *)

Definition items_at i := if i < place_count a then items a i else [::].
Local Notation at_place i := (items_at i).
Local Notation ended i := (completed a i).

Definition holds_item k (item : nat * seq nat * nat) : bool :=
  let: (head, rest, i) := item in
  if rest is x :: more then
    if is_terminal x then all (fun e => (e.1 == x) ==> ((head, more, i) \in at_place e.2)) (out k)
    else
      all (fun r => (r.1 == x) ==> ((x, r.2, k) \in at_place k)) (rules a) &&
      all (fun e => (e.1 == x) ==> ((head, more, i) \in at_place e.2)) (ended k)
  else (head, k) \in ended i.

Definition good_items : bool := all (fun k => all (holds_item k) (at_place k)) (iota 0 (place_count a)).

(** ** The verdicts *)

Definition derives_word steps word : bool := derived is_terminal (rules a) steps [:: initial a] == Some word.

Definition refutes i there : bool :=
  [&& i < place_count a, place i == there, (root a, [:: initial a], i) \in at_place i &
    all (fun e => (e.1 == root a) ==> ~~ is_last e.2) (ended i)].

Definition good_verdict word s v : bool :=
  match v with
  | Allowed z steps =>
      if counted_reads s z is Some (s', more) then
        oapp (fun last => derives_word steps (word ++ more ++ last)) false (counted_ends s')
      else false
  | Forbidden i => refutes i (word, Some s)
  end.

Definition good_end word v : bool :=
  match v with
  | Allowed _ steps => derives_word steps word
  | Forbidden i => refutes i (word, None)
  end.

Definition good_token (sm : sample) s (v : nat) : bool :=
  if counted_reads s (tokens a v) is Some outcome then
    has (fun o => (o.1 == outcome) && (allows o.2 == mask sm v)) (outcomes sm)
  else ~~ mask sm v.

Definition good_sample (sm : sample) : bool :=
  if counted_reads (begin a) (text sm) is Some (s, word) then
    [&& all (fun o => good_verdict (word ++ o.1.2) o.1.1 o.2) (outcomes sm),
        all (good_token sm s) (iota 0 (token_count a)) &
        if counted_ends s is Some last then good_end (word ++ last) (end_verdict sm) else ~~ allows (end_verdict sm)]
  else false.

Definition check : bool := [&& same_lexer, good_places, good_items & all good_sample (samples a)].

(** ** What acceptance means *)

Lemma far_delta q c : bytes <= c -> delta q c = None.
Proof. by rewrite /delta ltnNge => ->. Qed.

Lemma far_hold h c : bytes <= c -> hold_step h c = None.
Proof.
by move=> far; elim: h => [|q|q word k IH] /=; rewrite /prolong ?far_delta ?IH //=; case: (label q) => //= t; rewrite far_delta.
Qed.

Lemma far_step s c : bytes <= c -> lexer_step s c = None.
Proof. by rewrite /lexer_step ltnNge => ->. Qed.

Lemma stands_here (s : nat) h : h \in nth [::] (stands a) s -> s < size (stands a).
Proof. by case: ltnP => // far; rewrite nth_default. Qed.

Lemma same_reads : same_lexer -> forall w s h, h \in nth [::] (stands a) s ->
  match reads lexer_step s w, reads hold_step h w with
  | None, None => True
  | Some (s', e), Some (h', e') => e = e' /\ h' \in nth [::] (stands a) s'
  | _, _ => False
  end.
Proof.
case/andP=> _ /allP agrees; elim=> [|c w IH] s h here //=.
have same : same_step s h c.
  have [far|near] := leqP bytes c; first by rewrite /same_step far_step // far_hold.
  have /agrees/allP/(_ h here)/andP[_ /allP steps] : s \in iota 0 (size (stands a)) by rewrite mem_iota (stands_here here).
  by apply: steps; rewrite mem_iota.
move: same; rewrite /same_step; case: (lexer_step s c) => [[s' e]|]; case: (hold_step h c) => [[h' e']|] //=.
case/andP=> /eqP -> there; move: (IH s' h' there).
by case: (reads lexer_step s' w) => [[s'' f]|]; case: (reads hold_step h' w) => [[h'' f']|] //= [-> last]; split.
Qed.

(** The lexer of the artefact is longest match. *)
Theorem lexer_certified : check -> forall w,
  output lexer_step lexer_ends (begin a) w = terminals delta (first a) label w.
Proof.
case/and4P=> same _ _ _ w; rewrite -transducer /output; have /andP[starts /allP agrees] := same.
move: (same_reads same w starts).
case: (reads lexer_step _ w) => [[s e]|]; case: (reads hold_step _ w) => [[h e']|] //= [-> there].
have /agrees/allP/(_ h there)/andP[/eqP -> _] : s \in iota 0 (size (stands a)) by rewrite mem_iota (stands_here there).
by [].
Qed.

Lemma counted_cat u v : counted (u ++ v) = counted u ++ counted v.
Proof. exact: filter_cat. Qed.

Lemma counted_readsE s w : counted_reads s w = omap (fun after => (after.1, counted after.2)) (reads lexer_step s w).
Proof.
elim: w s => [|c w IH] s //=; rewrite /counted_step; case: (lexer_step s c) => [[s' e]|] //=.
by rewrite IH; case: (reads lexer_step s' w) => [[r f]|] //=; rewrite /emitting counted_cat.
Qed.

Lemma memberE : check -> forall w, member w <->
  exists2 word, output counted_step counted_ends (begin a) w = Some word & derives is_terminal (rules a) (initial a) word.
Proof.
move=> fine w; rewrite /member -lexer_certified // /output counted_readsE.
case: (reads lexer_step _ w) => [[s e]|] /=; last by split=> -[].
rewrite /counted_ends; case: (lexer_ends s) => [last|] /=; last by split=> -[].
split=> -[word [<-] known]; first by exists (counted (e ++ last)); rewrite //= counted_cat.
by exists (e ++ last); rewrite // counted_cat.
Qed.

Section Accepted.
Hypothesis fine : check.

Let fine_places : good_places. Proof. by case/and4P: fine. Qed.
Let fine_items : good_items. Proof. by case/and4P: fine. Qed.

Definition arc i t j : Prop := (t, j) \in out i.
Local Notation path := (path arc).

(** A word can be read from a place, to where a text may be over. *)
Definition readable i w : Prop := exists2 k, path i w k & is_last k.

Lemma readable_arc i t there w : has_arc i t there ->
  (forall j, j < place_count a -> place j = there -> readable j w) -> readable i (t :: w).
Proof.
case/hasP=> [[t' j] /= here /and3P[/eqP eq_t inside /eqP eq_place]] goes.
by have [k along ends] := goes j inside eq_place; exists k => //; exists j => //; rewrite /arc -eq_t.
Qed.

Lemma holds i : i < place_count a -> holds_place i.
Proof. by move=> inside; apply: (allP fine_places); rewrite mem_iota. Qed.

(** Where a word is left over, it can be read. *)
Lemma readable_word u s w : (forall j, j < place_count a -> place j = ([::], s) -> readable j w) ->
  forall i, i < place_count a -> place i = (u, s) -> readable i (u ++ w).
Proof.
move=> goes; elim: u => [|t u IH] i inside here; first exact: goes.
by have := holds inside; rewrite /holds_place here => one; apply: (readable_arc one) => j; apply: IH.
Qed.

Lemma readable_end u i : i < place_count a -> place i = (u, None) -> readable i u.
Proof.
rewrite -{2}[u]cats0; apply: readable_word => j inside here; exists j => //.
by have := holds inside; rewrite /holds_place here.
Qed.

(** From a state, all that texts emit. *)
Lemma readable_text z s s' word last i : i < place_count a -> place i = ([::], Some s) ->
  counted_reads s z = Some (s', word) -> counted_ends s' = Some last -> readable i (word ++ last).
Proof.
elim: z s word i => [|c z IH] s word i inside here /=.
  case=> <- <- ends; have := holds inside; rewrite /holds_place here ends => /andP[_] /=.
  case: last ends => [|t v] _ /=; first by exists i.
  by move=> one; apply: (readable_arc one) => j; apply: readable_end.
case move : (counted_step s c) => [[s1 e1]|] //=; case rest : (counted_reads s1 z) => [[s2 e2]|] //= [eq_s <-] ends.
rewrite eq_s in rest; rewrite -catA; have := holds inside; rewrite /holds_place here => /andP[/allP moves _].
have near : c < bytes by case: ltnP move => // far; rewrite /counted_step far_step.
have /moves : (s1, e1) \in undup (pmap (counted_step s) (iota 0 bytes)).
  by rewrite mem_undup mem_pmap -move map_f // mem_iota.
rewrite /holds_move /=; case: e1 move => [|t v] move.
  case/and4P=> inside' /eqP there /allP more over.
  have [k] := IH s1 e2 _ inside' there rest ends.
  case: (e2 ++ last) => [|t v] /=; first by move=> <- ended; exists i => //; apply: (implyP over).
  by case=> j one along ended; exists k => //; exists j => //; apply: more.
move=> one; apply: (readable_arc one) => j inside' there; apply: (readable_word _ inside' there) => m inside'' back.
exact: IH inside'' back rest ends.
Qed.

Lemma place_items k item : item \in at_place k -> holds_item k item.
Proof.
move=> here; have inside : k < place_count a by move: here; rewrite /items_at; case: ltnP.
by apply: (allP (allP fine_items k _)) => //; rewrite mem_iota.
Qed.

(** A refuted place refutes every word that can be read from it. *)
Lemma refuted i there w : refutes i there -> readable i w -> ~ derives is_terminal (rules a) (initial a) w.
Proof.
case/and4P=> inside _ begins /allP over [k along last].
pose item head rest i j : Prop := (head, rest, i) \in at_place j.
apply: (@nothing_derived is_terminal (rules a) nat arc item _ _ _ (root a) (initial a) i (fun k => is_last k) begins _ w k) => //.
- move=> head t rest j k1 k2 terminal /place_items; rewrite /holds_item terminal => /allP goes one.
  by have := goes _ one; rewrite eqxx.
- move=> head x rest j k1 body other /place_items; rewrite /holds_item (negbTE other) => /andP[/allP begin_rules _] known.
  by have := begin_rules _ known; rewrite eqxx.
- move=> head x rest j k1 k2 other /place_items; rewrite /holds_item (negbTE other) => /andP[_ /allP goes] /place_items done.
  by have := goes _ done; rewrite eqxx.
- by move=> k1 /place_items done; have := over _ done; rewrite eqxx => /negbTE ->.
Qed.

Lemma refuted_word i word s w : refutes i (word, s) ->
  (forall j, j < place_count a -> place j = ([::], s) -> readable j w) ->
  ~ derives is_terminal (rules a) (initial a) (word ++ w).
Proof.
move=> refutation goes; apply: (refuted refutation); case/and4P: refutation => inside /eqP here _ _.
exact: readable_word goes i inside here.
Qed.

Lemma derived_word steps word : derives_word steps word -> derives is_terminal (rules a) (initial a) word.
Proof.
by move=> /eqP/derived_spells/spells_cons[u [v [-> one rest]]]; inversion rest; rewrite cats0.
Qed.

Section Sample.
Variable sm : sample.
Hypothesis among : good_sample sm.

(** In the accepted samples a token is allowed if and only if a member goes on with its bytes. *)
Theorem mask_certified v : v < token_count a ->
  mask sm v <-> exists z, member (text sm ++ tokens a v ++ z).
Proof.
move=> known; move: among; rewrite /good_sample; case read : (counted_reads _ _) => [[s word]|] // /and3P[/allP good /allP all_tokens _].
have /all_tokens : v \in iota 0 (token_count a) by rewrite mem_iota.
have memberE' z : member (text sm ++ tokens a v ++ z) <-> exists2 w,
    obind (fun after => omap (cat after.2) (output counted_step counted_ends after.1 z))
      (counted_reads s (tokens a v)) = Some w & derives is_terminal (rules a) (initial a) (word ++ w).
  rewrite memberE // output_cat read [obind _ (Some _)]/= output_cat.
  case: (obind _ (counted_reads s _)) => [w|] /=; last by split=> -[].
  by split=> -[w' [<-] der]; [exists w | exists (word ++ w)].
rewrite /good_token; case token : (counted_reads s _) => [[s1 e1]|]; last first.
  move/negbTE=> ->; split=> // -[z /memberE']; rewrite token => -[w].
  by [].
case/hasP=> [[key why] /= there /andP[/eqP eq_key /eqP <-]]; have := good _ there; rewrite eq_key /= /good_verdict.
case: why {there} => [z steps|i] /=.
  case rest : (counted_reads s1 z) => [[s2 more]|] //; case ending : (counted_ends s2) => [last|] //= /derived_word der.
  split=> // _; exists z; apply/memberE'; exists (e1 ++ more ++ last); last by rewrite catA.
  by rewrite token /= /output rest /= ending /=.
move=> refutation; split=> // -[z /memberE'[w]]; rewrite token /= /output.
case rest : (counted_reads s1 z) => [[s2 more]|] //=; case ending : (counted_ends s2) => [last|] //= [<-].
rewrite !catA -catA => /(refuted_word refutation); case=> // j inside here.
exact: readable_text inside here rest ending.
Qed.

(** And the end is allowed if and only if the text is a member. *)
Theorem end_certified : allows (end_verdict sm) <-> member (text sm).
Proof.
move: among; rewrite memberE // /good_sample /output; case read : (counted_reads _ _) => [[s word]|] // /and3P[_ _].
rewrite [obind _ (Some _)]/=; case ending : (counted_ends s) => [last|] /=; last by move/negbTE=> ->; split=> // -[].
rewrite /good_end; case: (end_verdict sm) => [z steps|i] /=.
  by move/derived_word=> der; split=> // _; exists (word ++ last).
move=> refutation; split=> // -[w [<-]]; rewrite -[word ++ last]cats0.
move=> /(refuted_word refutation); case=> // j inside here.
exact: readable_end inside here.
Qed.

End Sample.

End Accepted.
End Check.
