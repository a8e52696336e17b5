"""Lower bounds: of the inner problem under the closed form, and of the simulated step."""
