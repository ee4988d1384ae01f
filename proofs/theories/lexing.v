(** Longest match with going back, and the transducer that does it (grammar-theory.md, sections 2.3, 3.1 and 4). *)

From mathcomp Require Import all_ssreflect.
From Phi Require Import transducer.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Automaton.
Variables (C Q T : Type).

(** The automaton of all lexemes: [delta] goes from a state by a byte to a state from which a lexeme can be completed, and [label]
    is the terminal of a lexeme that ends in a state. No lexeme is empty: that of [start] is never asked for. *)
Variable delta : Q -> C -> option Q.
Variable start : Q.
Variable label : Q -> option T.

Definition run q w : option Q := foldl (fun s c => obind (delta^~ c) s) (Some q) w.

Lemma run_none w : foldl (fun s c => obind (delta^~ c) s) None w = None.
Proof. by elim: w. Qed.

Lemma run_rcons q w c : run q (rcons w c) = obind (delta^~ c) (run q w).
Proof. by rewrite /run -cats1 foldl_cat. Qed.

(** ** The definition

    The longest beginning of a text, not empty, that is a lexeme: its length and its terminal. *)
Fixpoint longest q w : option (nat * T) :=
  if w is c :: z then
    if delta q c is Some r then
      if longest r z is Some (n, t) then Some (n.+1, t) else omap (pair 1) (label r)
    else None
  else None.

(** It is cut off, and so on with the rest. *)
Fixpoint cut fuel w : option (seq T) :=
  if w is [::] then Some [::] else
  if fuel is m.+1 then obind (fun lexeme => omap (cons lexeme.2) (cut m (drop lexeme.1 w))) (longest start w) else None.

Definition terminals w : option (seq T) := cut (size w) w.

Lemma longest_size q w n t : longest q w = Some (n, t) -> 0 < n <= size w.
Proof.
elim: w q n t => [|c w IH] q n t //=; case: (delta q c) => [r|] //.
case found : (longest r w) => [[m u]|]; first by case=> <- _; have := IH _ _ _ found; rewrite ltnS => /andP[].
by case: (label r) => // u' [<- _].
Qed.

(** It is a lexeme, and no longer beginning is one. *)
Lemma longest_lexeme q w n t : longest q w = Some (n, t) -> obind label (run q (take n w)) = Some t.
Proof.
elim: w q n t => [|c w IH] q n t //=; case next : (delta q c) => [r|] //.
case found : (longest r w) => [[m u]|].
  by case=> <- <-; rewrite -(IH _ _ _ found) /run /= next.
by case ends : (label r) => [u'|] // [<- <-]; rewrite /= take0 /run /= next /= ends.
Qed.

Lemma longest_most q w m : 0 < m <= size w -> obind label (run q (take m w)) <> None ->
  exists n t, longest q w = Some (n, t) /\ m <= n.
Proof.
elim: w q m => [|c w IH] q [|m] //=; rewrite /run /=; case next : (delta q c) => [r|] /=; last by rewrite run_none.
case: m => [|m] fits lexeme.
  case: (longest r w) => [[n t]|]; first by exists n.+1, t.
  by move: lexeme; rewrite take0 /=; case: (label r) => [t|] // _; exists 1, t.
by have [n [t [-> less]]] := IH r m.+1 fits lexeme; exists n.+1, t.
Qed.

Lemma cut_fuel fuel more w : size w <= fuel -> size w <= more -> cut fuel w = cut more w.
Proof.
elim: fuel more w => [|fuel IH] [|more] [|c w] // fits fits'.
rewrite [cut _ _]/= [RHS]/= -/(longest start (c :: w)); case found : (longest start (c :: w)) => [[n t]|] //=; congr omap.
have /andP[n_gt0 n_most] := longest_size found; case: n n_gt0 n_most {found} => // n _ n_most.
have rest : size (drop n w) <= size w by rewrite size_drop leq_subr.
by apply: IH; apply: leq_trans rest _.
Qed.

(** The definition, as an equation. *)
Lemma terminalsE w : terminals w =
  if w is [::] then Some [::]
  else obind (fun lexeme => omap (cons lexeme.2) (terminals (drop lexeme.1 w))) (longest start w).
Proof.
case: w => [|c w] //; rewrite [LHS]/terminals [size _]/= [cut _ _]/= -/(longest start (c :: w)).
case found : (longest start (c :: w)) => [[n t]|] //=; congr omap.
have /andP[n_gt0 n_most] := longest_size found; case: n n_gt0 n_most {found} => // n _ n_most.
by apply: cut_fuel; rewrite ?leqnn //= size_drop leq_subr.
Qed.

(** ** The transducer

    Its states: nothing is pending ([Start]); something is, and stands for a state of the automaton ([Alone]); or a beginning of what
    is pending is a lexeme, but all of it is none: held back is what was emitted if the longer lexeme failed, with the state of the
    reading without it ([Holding]). *)
Inductive hold := Start | Alone of Q | Holding of Q & seq T & hold.

Definition prolong q c (back : option (hold * seq T)) : option (hold * seq T) :=
  if delta q c is Some r then
    Some (if (label r, back) is (None, Some (k, e)) then Holding r e k else Alone r, [::])
  else back.

Fixpoint step (h : hold) c : option (hold * seq T) :=
  let fresh word := omap (fun r => (Alone r, word)) (delta start c) in
  match h with
  | Start => fresh [::]
  | Alone q => prolong q c (obind (fun t => fresh [:: t]) (label q))
  | Holding q word k => prolong q c (omap (emitting word) (step k c))
  end.

Fixpoint ends (h : hold) : option (seq T) :=
  match h with
  | Start => Some [::]
  | Alone q => omap (fun t => [:: t]) (label q)
  | Holding q word k => omap (cat word) (ends k)
  end.

Local Notation reads := (reads step).
Local Notation output := (output step ends).

(** The state that stands for a text that begins a lexeme. *)
Definition standing w q : hold :=
  if label q is Some _ then Alone q
  else if obind (fun l => omap (emitting [:: l.2]) (reads Start (drop l.1 w))) (longest start w) is Some (k, e) then Holding q e k
  else Alone q.

Lemma longest_dead q u c z p : run q u = Some p -> delta p c = None -> longest q (u ++ c :: z) = longest q u.
Proof.
elim: u q => [|d u IH] q; first by case=> -> /= ->.
by rewrite /run /=; case next : (delta q d) => [r|] /=; rewrite ?run_none // => leads dead; rewrite (IH r).
Qed.

Lemma longest_whole q u p t : u <> [::] -> run q u = Some p -> label p = Some t -> longest q u = Some (size u, t).
Proof.
elim: u q => [|d u IH] q // _; rewrite /run /=; case next : (delta q d) => [r|] /=; rewrite ?run_none // => leads ending.
by case: u IH leads => [|e u] IH leads; [case: leads => ->; rewrite /= ending | rewrite (IH r)].
Qed.

Lemma longest_rcons q u c p : run q (rcons u c) = Some p -> label p = None -> longest q (rcons u c) = longest q u.
Proof.
elim: u q => [|d u IH] q; rewrite /run /=.
  by case: (delta q c) => [r|] //= [->] ->.
by case next : (delta q d) => [r|] /=; rewrite ?run_none // => leads no; rewrite (IH r).
Qed.

Lemma emptyVfilled (w : seq C) : w = [::] \/ w <> [::].
Proof. by case: w; [left | right]. Qed.

Lemma drop_rcons_le n (w : seq C) c : n <= size w -> drop n (rcons w c) = rcons (drop n w) c.
Proof.
move=> fits; rewrite -!cats1 drop_cat; case: ltnP => // most.
have -> : n = size w by apply/eqP; rewrite eqn_leq fits.
by rewrite drop_size subnn.
Qed.

(** What becomes of a text that begins a lexeme, if [c] does not go on with it. *)
Lemma gone w q c : w <> [::] -> run start w = Some q ->
  step (standing w q) c = prolong q c
    (obind (fun l => omap (emitting [:: l.2]) (reads Start (rcons (drop l.1 w) c))) (longest start w)).
Proof.
move=> filled leads; rewrite /standing; case ending : (label q) => [t|] /=.
  rewrite ending (longest_whole filled leads ending) /= drop_size /=.
  by case: (delta start c).
case found : (longest start w) => [[n t]|] /=; last by rewrite ending.
rewrite reads_rcons; case: (reads Start (drop n w)) => [[k e]|] /=; last by rewrite ending.
by case: (step k c) => [[k' e']|].
Qed.

Lemma alive w q : w <> [::] -> run start w = Some q -> reads Start w = Some (standing w q, [::]).
Proof.
elim/last_ind: w q => [|w c IH] q // _ whole; have := whole; rewrite run_rcons reads_rcons.
have [->|filled] := emptyVfilled w.
  by rewrite /= => one; rewrite one /standing /= one; case: (label q).
case leads : (run start w) => [p|] // next; rewrite (IH p) // [obind _ _]/= gone //.
rewrite /prolong [delta p c]next /standing; case ending : (label q) => [t|] //.
rewrite (longest_rcons whole ending); case found : (longest start w) => [[n t]|] //=.
have /andP[_ fits] := longest_size found; rewrite drop_rcons_le //.
Qed.

(** Every text begins a lexeme, or has a first byte that goes on with none. *)
Lemma first_dead q w : (exists p, run q w = Some p) \/
  exists u c z p, [/\ w = u ++ c :: z, run q u = Some p & delta p c = None].
Proof.
elim: w q => [|c w IH] q; first by left; exists q.
rewrite /run /=; case next : (delta q c) => [r|] /=; last by right; exists [::], c, w, q.
have [[p leads]|[u [d [z [p [-> leads dead]]]]]] := IH r; first by left; exists p.
by right; exists (c :: u), d, z, p; rewrite /run /= next.
Qed.

(** The transducer emits what longest match cuts, and refuses the texts that it cannot cut. *)
Theorem transducer w : output Start w = terminals w.
Proof.
have [m] := ubnP (size w); elim: m w => // m IH w small; have [->|filled] := emptyVfilled w; first by [].
have -> : terminals w = obind (fun l => omap (cons l.2) (output Start (drop l.1 w))) (longest start w).
  rewrite terminalsE; case eq_w : w filled => [|b v] // _; rewrite -eq_w; case found : (longest start w) => [[n t]|] //=; congr omap; rewrite IH //.
  have /andP[n_gt0 n_most] := longest_size found; rewrite size_drop; apply: leq_trans (small : size w <= m).
  by rewrite ltn_subrL n_gt0 (leq_trans n_gt0).
have [[q leads]|[u [c [z [p [split_w leads dead]]]]]] := first_dead start w.
  rewrite /transducer.output (alive filled leads) /standing /=; case ending : (label q) => [t|] /=.
    by rewrite ending (longest_whole filled leads ending) /= drop_size.
  case found : (longest start w) => [[n t]|] /=; last by rewrite ending.
  by case: (reads Start (drop n w)) => [[k e]|] /=; rewrite ?ending //; case: (ends k).
rewrite split_w (longest_dead z leads dead) -cat_rcons output_cat reads_rcons.
have [empty|some] := emptyVfilled u.
  by move: leads dead; rewrite empty => -[<-] dead; rewrite /= dead.
rewrite (alive some leads) [obind _ (Some _)]/= gone // /prolong dead.
case found : (longest start u) => [[n t]|] //=.
have /andP[_ fits] := longest_size found.
rewrite drop_cat size_rcons ltnS fits drop_rcons_le // output_cat.
case: (reads Start (rcons _ c)) => [[k e]|] //=.
by rewrite ?cats0; case: (output k z).
Qed.

End Automaton.
