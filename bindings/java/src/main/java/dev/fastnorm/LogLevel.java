package dev.fastnorm;

/** Severity of a log message, the gravest first. */
public enum LogLevel {
    /** Something failed. */
    ERROR(fastnorm_log_level.FASTNORM_LOG_ERROR),
    /** Something works, but not as it could. */
    WARNING(fastnorm_log_level.FASTNORM_LOG_WARNING),
    /** What was found and chosen. */
    INFO(fastnorm_log_level.FASTNORM_LOG_INFO),
    /** Details, for whoever looks for a defect. */
    DEBUG(fastnorm_log_level.FASTNORM_LOG_DEBUG);

    private static final LogLevel[] KNOWN = values();

    final int id;

    LogLevel(int id) {
        this.id = id;
    }

    /** A level that is not known is of less weight than all that are. */
    static LogLevel of(int id) {
        for (LogLevel level : KNOWN) {
            if (level.id == id) {
                return level;
            }
        }
        return DEBUG;
    }
}
