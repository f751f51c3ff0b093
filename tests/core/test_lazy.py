"""What is found when it is asked for first."""

from hs_core.lazy import lazy


class Circle:
    def __init__(self, radius: int) -> None:
        self.radius = radius
        self.asked = 0

    @lazy
    def area(self) -> int:
        """Of a square circle."""
        self.asked += 1
        return self.radius**2


def test_an_answer_is_found_once_and_for_each_by_itself() -> None:
    one, other = Circle(2), Circle(3)
    assert (one.area, one.area, other.area) == (4, 4, 9)
    assert (one.asked, other.asked) == (1, 1)


def test_it_is_not_found_before_somebody_asks() -> None:
    circle = Circle(2)
    assert circle.asked == 0
    assert "area" not in circle.__dict__


def test_whoever_forgets_it_has_it_found_anew() -> None:
    circle = Circle(2)
    assert circle.area == 4
    circle.radius = 5
    del circle.__dict__["area"]
    assert circle.area == 25


def test_what_it_says_of_itself_can_be_read_from_the_class() -> None:
    assert Circle.area.__doc__ == "Of a square circle."
