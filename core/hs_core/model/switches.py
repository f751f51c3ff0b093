"""How often a job was suspended and resumed."""

from dataclasses import dataclass

from hs_core.reports import JobReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How often a job was suspended and resumed, and how long that took."""

    suspends: int = 0
    resumes: int = 0
    suspend_s: float = 0.0
    resume_s: float = 0.0

    @classmethod
    def of(cls, report: JobReport | None) -> "Switches":
        if report is None:
            return NO_SWITCHES
        return cls(
            suspends=report.suspends,
            resumes=report.resumes,
            suspend_s=report.suspend_s,
            resume_s=report.resume_s,
        )

    def __add__(self, other: "Switches") -> "Switches":
        return Switches(
            suspends=self.suspends + other.suspends,
            resumes=self.resumes + other.resumes,
            suspend_s=self.suspend_s + other.suspend_s,
            resume_s=self.resume_s + other.resume_s,
        )

    def __sub__(self, other: "Switches") -> "Switches":
        return Switches(
            suspends=self.suspends - other.suspends,
            resumes=self.resumes - other.resumes,
            suspend_s=self.suspend_s - other.suspend_s,
            resume_s=self.resume_s - other.resume_s,
        )


NO_SWITCHES = Switches()
