(** What each theorem rests on. *)

From Phi Require Import tree doob thinning distance residual drafts windows counterexamples lexing mask
  pick ahead pushdown preprocessing singletons distances.

Print Assumptions doob_identity.
Print Assumptions weighted_mean.
Print Assumptions mean_weight.
Print Assumptions thinning.
Print Assumptions step_distribution.
Print Assumptions accepted.
Print Assumptions returned_conditioned.
Print Assumptions launch_order.
Print Assumptions residual.
Print Assumptions unbiased.
Print Assumptions tv_overlap.
Print Assumptions tv_dominated.
Print Assumptions certificate.
Print Assumptions a_priori.
Print Assumptions telescope.
Print Assumptions window_weight.
Print Assumptions verified.
Print Assumptions residual_sum.
Print Assumptions the_coin_is_needed.
Print Assumptions launch_order_is_needed.
Print Assumptions reads_cat.
Print Assumptions transducer.
Print Assumptions transducer_end.
Print Assumptions checker.
Print Assumptions stack_invariance.
Print Assumptions mask_characterization.
Print Assumptions classes.
Print Assumptions end_characterization.
Print Assumptions sound_and_complete.
Print Assumptions no_dead_end.
Print Assumptions over_approximation.
Print Assumptions published_accepts.
Print Assumptions longest_match_does_not.
Print Assumptions ours_does_not.
Print Assumptions count_choose.
Print Assumptions count_fail.
Print Assumptions choose_step.
Print Assumptions choose_free.
Print Assumptions taken_first.
Print Assumptions proportional.
Print Assumptions drawn_ahead.
Print Assumptions invariance.
Print Assumptions decided_or_below.
Print Assumptions over_the_top.
Print Assumptions preprocessing.
Print Assumptions producible_heads.
Print Assumptions producible_alone.
Print Assumptions heads_alone.
Print Assumptions singletons_forbid.
Print Assumptions heads_allow.
Print Assumptions least_solution.
