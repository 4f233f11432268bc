//! The error of a command, with its exit code and the next step.

use std::io;

use hapax_wire::{Code, proto};
use serde_json::{Map, Value};

use crate::exit::Exit;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) what: String,
    /// The next step for the user, if known.
    pub(crate) next: Option<String>,
    /// The broker's error code, if the broker refused.
    pub(crate) code: Option<Code>,
    /// The broker's `retry_after`.
    pub(crate) retry_after_ms: Option<u64>,
    /// Whether the reader of our output closed it. That is not an error, and nothing is printed.
    pub(crate) is_broken_pipe: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            next: None,
            code: None,
            retry_after_ms: None,
            is_broken_pipe: false,
        }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    pub(crate) fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }

    /// The refusal of one message or one settle.
    pub(crate) fn of_problem(problem: &proto::Problem) -> Self {
        let code = Code::parse(&problem.code);
        let exit = code.map_or(Exit::Failure, Exit::of);
        let wait = problem.retry_after_ms.filter(|_| problem.retryable);
        let next = match (code, wait) {
            (_, Some(wait)) => Some(format!(
                "the same command can be repeated under the same key, after {}",
                crate::duration::short(wait)
            )),
            (Some(code), None) => what_to_do(code),
            (None, None) => None,
        };
        let what = match code {
            Some(code) => format!("{}: {}", code.as_str(), problem.detail),
            None => format!("{}: {}", problem.code, problem.detail),
        };
        Self { next, code, retry_after_ms: wait, ..Self::new(exit, what) }
    }

    /// Whether the same command may succeed later.
    fn is_retryable(&self) -> bool {
        let by_exit = matches!(self.exit, Exit::Unavailable | Exit::WaitOver | Exit::RetryLater);
        self.code.map_or(by_exit, Code::is_retryable)
    }

    /// The last document of `-o json`. Its fields are those of an error answer.
    pub(crate) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("answer".to_owned(), "error".into());
        let mut detail = self.what.as_str();
        if let Some(code) = self.code {
            let prefix = format!("{}: ", code.as_str());
            detail = detail.strip_prefix(&prefix).unwrap_or(detail);
            fields.insert("code".to_owned(), code.as_str().into());
        }
        fields.insert("retryable".to_owned(), self.is_retryable().into());
        fields.insert("detail".to_owned(), detail.into());
        if let Some(wait) = self.retry_after_ms {
            fields.insert("retry_after_ms".to_owned(), wait.into());
        }
        if let Some(next) = &self.next {
            fields.insert("next".to_owned(), next.as_str().into());
        }
        fields.insert("exit".to_owned(), (self.exit as u8).into());
        fields.into()
    }
}

/// The advice for an error code, in the words of the command line where that of the HTTP pages
/// names headers. The advice for `invalid` is left out: it points to the HTTP field `detail`, which
/// is the printed error itself.
pub(crate) fn what_to_do(code: Code) -> Option<String> {
    let advice = match code {
        Code::Invalid => return None,
        Code::MalformedKey => {
            "give a key of 1 to 255 bytes without control characters; of a longer one, its hash"
        }
        Code::Conflict => {
            "use one key per operation, and one id per redrive. If the body of an operation \
             changes between retries, give its fingerprint: --fingerprint, or \"fingerprint\" in a \
             line of a batch"
        }
        Code::UndatedKey => "use UUIDv7 keys, or give --issued-at",
        Code::InFlight => "try again later: another caller has claimed the key",
        code => code.what_to_do(),
    };
    Some(advice.to_owned())
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
