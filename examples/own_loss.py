"""A user-defined loss in a few lines: checked, fitted, certified."""

from dataclasses import dataclass

from sklearn.datasets import load_diabetes

from riskmin import LinearRegressor, check_loss, namespace
from riskmin.losses.labels import check_finite


@dataclass(frozen=True)
class Expectile:
    """Asymmetric squared loss, |level - [z > y]| (z - y)^2 / 2."""

    level: float = 0.5

    separable = True
    smooth = True
    task = "regression"
    formula = "|level - [z > y]| (z - y)^2 / 2"
    check_labels = check_finite

    def value_grad(self, z, y, c):
        """The sum of c_i l(z_i, y_i), and its gradient in z."""
        xp = namespace(z)
        r = z - y
        g = c * r * xp.abs(self.level - xp.astype(r > 0, z.dtype))
        return 0.5 * (g @ r), g


def main() -> None:
    X, y = load_diabetes(return_X_y=True)
    for level in (0.1, 0.5, 0.9):
        check_loss(Expectile(level))
        model = LinearRegressor(Expectile(level), alpha=1e-5).fit(X, y)
        below = (y < model.predict(X)).mean()
        print(
            f"level {level}: J = {model.objective_:.2f}, certified gap {model.gap_:.2g}, "
            f"{below:.0%} of the labels below the prediction"
        )


if __name__ == "__main__":
    main()
