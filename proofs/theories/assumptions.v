(** What each theorem rests on. *)

From Phi Require Import tree doob thinning distance residual drafts windows counterexamples transducer lexing mask grammar certificate.

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
Print Assumptions longest_lexeme.
Print Assumptions longest_most.
Print Assumptions terminalsE.
Print Assumptions transducer.
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
Print Assumptions derived_spells.
Print Assumptions nothing_derived.
Print Assumptions lexer_certified.
Print Assumptions mask_certified.
Print Assumptions end_certified.
