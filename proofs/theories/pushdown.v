(** What the top of a stack decides (grammar-theory.md, section 5.2).

    A machine on stacks of states, as a generalised LR parser: before a terminal it may reduce by rules, then it shifts the
    terminal. A reduction takes off as many entries as the body of its rule is long, and looks at the one below them. Reductions
    at once, after a shift, are left out: they are those that every later terminal asks for. *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Pushdown.
Variables (Q N : eqType) (T : Type).

(** The rules to reduce by in a state before a terminal: the head, and how many entries come off below the top one. *)
Variable reductions : Q -> T -> seq (N * nat).
Variable goto : Q -> N -> option Q.
Variable shifts : Q -> T -> option Q.
Implicit Types (t : T) (w z : seq T) (s u v top below : seq Q) (rule : N * nat).

(** A nonterminal on what is left of a stack, whose top comes first. *)
Definition land (head : N) s : seq (seq Q) :=
  if s is q :: _ then if goto q head is Some r then [:: r :: s] else [::] else [::].

Definition reduce t s : seq (seq Q) :=
  if s is q :: rest then flatten [seq land rule.1 (drop rule.2 rest) | rule <- reductions q t] else [::].

Definition shift t s : seq (seq Q) :=
  if s is q :: _ then if shifts q t is Some r then [:: r :: s] else [::] else [::].

Inductive reduced t : seq Q -> seq Q -> Prop :=
| reduced_none s : reduced t s s
| reduced_more s u v : u \in reduce t s -> reduced t u v -> reduced t s v.

(** Reading a word, along any run of the machine. *)
Definition reads t s u : Prop := exists2 v, reduced t s v & u \in shift t v.
Fixpoint read w s u : Prop := if w is t :: z then exists2 v, reads t s v & read z v u else u = s.

(** ** Cut stacks

    The same machine runs on the top of a stack whose lower part is not known. Here are the reductions that would take off more than
    is known: the head, and how many entries come off below the last one that is known. *)
Definition beyond t s : seq (N * nat) :=
  if s is q :: rest then [seq (rule.1, rule.2 - size rest) | rule <- reductions q t & size rest <= rule.2] else [::].

(** Some run meets the unknown. *)
Fixpoint opens w top : Prop :=
  if w is t :: z then
    (exists2 v, reduced t top v & beyond t v != [::]) \/ (exists2 v, reads t top v & opens z v)
  else False.

(** A run meets the unknown, and goes on from the stack that the nonterminal makes on what lies below. *)
Fixpoint falls w top below u : Prop :=
  if w is t :: z then
    (exists v rule y, [/\ reduced t top v, rule \in beyond t v, y \in land rule.1 (drop rule.2 below) & read w y u])
    \/ (exists2 v, reads t top v & falls z v below u)
  else False.

Lemma land_cat head s below u : u \in land head s -> u ++ below \in land head (s ++ below).
Proof. by case: s => [|q s] //=; case: (goto q head) => //= r; rewrite inE => /eqP ->; rewrite mem_head. Qed.

Lemma land_known head s below u : s != [::] -> u \in land head (s ++ below) ->
  exists2 v, v \in land head s & u = v ++ below.
Proof.
case: s => [|q s] //= _; case: (goto q head) => //= r; rewrite inE => /eqP ->.
by exists [:: r, q & s]; rewrite ?mem_head.
Qed.

Lemma reduce_cat t s below u : u \in reduce t s -> u ++ below \in reduce t (s ++ below).
Proof.
case: s => [|q rest] //= /flatten_mapP[rule asked lands]; apply/flatten_mapP; exists rule => //.
by rewrite drop_cat; case: ltnP lands => [_|/drop_oversize ->] //; apply: land_cat.
Qed.

(** A reduction of a whole stack is one of its top, or goes beyond it. *)
Lemma reduce_split t s below u : s != [::] -> u \in reduce t (s ++ below) ->
  (exists2 v, v \in reduce t s & u = v ++ below)
  \/ (exists2 rule, rule \in beyond t s & u \in land rule.1 (drop rule.2 below)).
Proof.
case: s => [|q rest] //= _ /flatten_mapP[rule asked]; rewrite drop_cat; case: ltnP => [less|more] lands.
  left; have [|v v_lands ->] := land_known _ lands; first by rewrite -size_eq0 size_drop subn_eq0 -ltnNge.
  by exists v => //; apply/flatten_mapP; exists rule.
by right; exists (rule.1, rule.2 - size rest) => //; apply/mapP; exists rule; rewrite // mem_filter more.
Qed.

(** And what goes beyond the top is a reduction of the whole stack. *)
Lemma beyond_reduce t s below rule u : rule \in beyond t s -> u \in land rule.1 (drop rule.2 below) ->
  u \in reduce t (s ++ below).
Proof.
case: s => [|q rest] //= /mapP[whole]; rewrite mem_filter => /andP[more asked] -> lands.
by apply/flatten_mapP; exists whole; rewrite // drop_cat ltnNge more.
Qed.

Lemma land_some head s u : u \in land head s -> u != [::].
Proof. by case: s => [|q s] //=; case: (goto q head) => //= r; rewrite inE => /eqP ->. Qed.

Lemma reduce_some t s u : u \in reduce t s -> u != [::].
Proof. by case: s => [|q rest] //= /flatten_mapP[rule _ /land_some]. Qed.

Lemma reduced_some t s u : reduced t s u -> s != [::] -> u != [::].
Proof. by elim=> // {u}s v u /reduce_some some _ IH _; apply: IH. Qed.

Lemma reduced_cat t s below u : reduced t s u -> reduced t (s ++ below) (u ++ below).
Proof.
elim=> [v|{u}s v u one _ IH]; first exact: reduced_none.
exact: reduced_more (reduce_cat below one) IH.
Qed.

Lemma reduced_trans t s u v : reduced t s u -> reduced t u v -> reduced t s v.
Proof. by elim=> // {u}s x u one _ IH /IH; apply: reduced_more one. Qed.

Lemma reduced_split t top below u : top != [::] -> reduced t (top ++ below) u ->
  (exists2 v, reduced t top v & u = v ++ below)
  \/ (exists v rule y, [/\ reduced t top v, rule \in beyond t v, y \in land rule.1 (drop rule.2 below) & reduced t y u]).
Proof.
move=> some; move whole_is : (top ++ below) => whole run.
elim: run top some whole_is => [s|{u whole}s x u one rest IH] top some whole_is.
  by left; exists top; [exact: reduced_none|].
move: one; rewrite -whole_is => /reduce_split[] // [v one x_is]; last first.
  by right; exists top, v, x; split=> //; exact: reduced_none.
have [||[y y_run ->]|[y [rule [z [y_run past lands more]]]]] := IH v; rewrite ?(reduce_some one) //.
- by left; exists y => //; exact: reduced_more one y_run.
- by right; exists y, rule, z; split=> //; exact: reduced_more one y_run.
Qed.

Lemma shift_cat t s below u : u \in shift t s -> u ++ below \in shift t (s ++ below).
Proof. by case: s => [|q s] //=; case: (shifts q t) => //= r; rewrite inE => /eqP ->; rewrite mem_head. Qed.

Lemma shift_known t s below u : s != [::] -> u \in shift t (s ++ below) -> exists2 v, v \in shift t s & u = v ++ below.
Proof.
case: s => [|q s] //= _; case: (shifts q t) => //= r; rewrite inE => /eqP ->.
by exists [:: r, q & s]; rewrite ?mem_head.
Qed.

Lemma reads_some t s u : reads t s u -> u != [::].
Proof. by case=> -[|q v] //= _; case: (shifts q t) => //= r; rewrite inE => /eqP ->. Qed.

(** Stack invariance: what a cut stack reads without the unknown, every stack with this top reads, with the same result on top. *)
Theorem invariance w top below u : read w top u -> read w (top ++ below) (u ++ below).
Proof.
elim: w top => [|t z IH] top /=; first by move=> ->.
case=> v [x run one] /IH rest; exists (v ++ below) => //.
by exists (x ++ below); [exact: reduced_cat | exact: shift_cat].
Qed.

(** And conversely: a run of a whole stack is one of its top, or meets the unknown and goes on from what lies below. *)
Theorem decided_or_below w top below u : top != [::] ->
  read w (top ++ below) u <-> (exists2 v, read w top v & u = v ++ below) \/ falls w top below u.
Proof.
move=> some; split=> [|[[v runs ->]|]]; last 2 first.
- exact: invariance.
- elim: w top some => [|t z IH] top some //= [[v [rule [y [run past lands [x [s more one] rest]]]]]|[v one /IH rest]].
    exists x => //; exists s => //; apply: reduced_trans (reduced_cat below run) _.
    exact: reduced_more (beyond_reduce past lands) more.
  exists (v ++ below); last by apply: rest; exact: reads_some one.
  by case: one => x run one; exists (x ++ below); [exact: reduced_cat | exact: shift_cat].
elim: w top some => [|t z IH] top some /=; first by move=> ->; left; exists top.
case=> x [s run one] rest; case: (reduced_split some run) => [[v v_run s_is]|[v [rule [y [v_run past lands more]]]]].
  move: one; rewrite s_is => /shift_known[|y one x_is]; first exact: reduced_some v_run some.
  have from_y : reads t top y by exists v.
  move: rest; rewrite x_is => /(IH y (reads_some from_y))[[last runs u_is]|fell]; last by right; right; exists y.
  by left; exists last => //; exists y.
by right; left; exists v, rule, y; split=> //; exists x => //; exists s.
Qed.

Lemma falls_opens w top below u : falls w top below u -> opens w top.
Proof.
elim: w top => [|t z IH] top //= [[v [rule [y [run past _ _]]]]|[v one /IH]]; last by right; exists v.
by left; exists v => //; case: (beyond t v) past.
Qed.

(** Over-approximation: where the cut stack can neither go on nor meet the unknown, no stack with this top can go on. *)
Corollary over_the_top w top : top != [::] -> (forall v, ~ read w top v) -> ~ opens w top ->
  forall below u, ~ read w (top ++ below) u.
Proof. by move=> some stuck closed below u /(decided_or_below _ _ _ some)[[v /stuck]|/falls_opens]. Qed.

End Pushdown.
