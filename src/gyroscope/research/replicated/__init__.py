"""Several parameter servers, some of them Byzantine, in the way of GuanYu (El Mhamdi et al. 2020): simulated.

`quorums` has the bounds and says who is heard, `models` what is heard of the servers, `servers` what they remember,
`drift` how far the honest ones are apart, `round` the round.
"""
