//! Why a command did not do what it was asked, with the exit code and the next step.

use std::io;

use hapax_wire::{Code, proto};

use crate::exit::Exit;

/// The end of a command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) what: String,
    /// What to do now, where that is known.
    pub(crate) next: Option<String>,
    /// Of what the broker refused.
    pub(crate) code: Option<Code>,
    /// Whoever read our output went away. Nothing is wrong, and there is nobody to tell.
    pub(crate) is_broken_pipe: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), next: None, code: None, is_broken_pipe: false }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    pub(crate) fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }

    /// What the broker says is wrong with one message or one settle.
    pub(crate) fn of_problem(problem: &proto::Problem) -> Self {
        let code = Code::parse(&problem.code);
        let exit = code.map_or(Exit::Failure, Exit::of);
        let wait = problem.retry_after_ms.filter(|_| problem.retryable);
        let next = match (code, wait) {
            (_, Some(wait)) => Some(format!(
                "the same command can be repeated under the same key, after {}",
                crate::duration::short(wait)
            )),
            (Some(code), None) => Some(code.what_to_do().to_owned()),
            (None, None) => None,
        };
        let what = match code {
            Some(code) => format!("{}: {}", code.as_str(), problem.detail),
            None => format!("{}: {}", problem.code, problem.detail),
        };
        Self { next, code, ..Self::new(exit, what) }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            return Self { is_broken_pipe: true, ..Self::new(Exit::Ok, "") };
        }
        Self::new(Exit::Failure, format!("{error:#}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}
