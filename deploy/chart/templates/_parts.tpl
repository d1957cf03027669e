{{/* The labels of what is named .part. */}}
{{- define "botpool.labels" -}}
app.kubernetes.io/name: botpool
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* Names of a release are its own: two may share a namespace. */}}
{{- define "botpool.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "botpool.publicUrl" -}}
{{ .Values.publicUrl | default (printf "http://%s.%s.svc:%v" (include "botpool.name" .) .Release.Namespace .Values.service.port) }}
{{- end }}

{{/* A Deployment of botpool with the role .part. */}}
{{- define "botpool.deployment" -}}
{{- $values := .root.Values }}
{{- $own := get $values .part }}
{{- $name := include "botpool.name" .root }}
{{- if not (or $values.bots.images.googleMeet $values.bots.images.microsoftTeams $values.bots.images.zoom) }}
{{- fail "Set the image of at least one platform, such as bots.images.googleMeet." }}
{{- end }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}-{{ .part }}
  labels:
    {{- include "botpool.labels" . | nindent 4 }}
spec:
  replicas: {{ $own.replicas }}
  # One more is ready before one goes: no call finds nobody.
  strategy:
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  selector:
    matchLabels:
      {{- include "botpool.labels" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "botpool.labels" . | nindent 8 }}
      annotations:
        # What is set here is read at the start.
        checksum/settings: {{ include (print .root.Template.BasePath "/settings.yaml") .root | sha256sum }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $name }}-{{ .part }}
      # Only a worker calls Kubernetes.
      automountServiceAccountToken: {{ eq .part "worker" }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: 60
      {{- with $values.imagePullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: botpool
          image: {{ $values.image }}
          imagePullPolicy: {{ $values.imagePullPolicy }}
          args: [serve, --role, {{ .part }}]
          envFrom:
            - configMapRef: {name: {{ $name }}}
          env:
            - name: BOTPOOL_DATABASE_URL
              valueFrom: {secretKeyRef: {name: {{ $values.secret }}, key: database-url}}
            - name: BOTPOOL_ADMIN_KEY
              valueFrom: {secretKeyRef: {name: {{ $values.secret }}, key: admin-key}}
          ports:
            - {name: http, containerPort: 8000, protocol: TCP}
          startupProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 2
            failureThreshold: 90
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 2
            timeoutSeconds: 5
          {{- if eq .part "api" }}
          lifecycle:
            # Nodes learn a moment late that it goes: it serves until they know.
            preStop: {exec: {command: [sleep, "5"]}}
          {{- end }}
          resources:
            {{- toYaml $own.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: data, mountPath: /var/lib/botpool}
            - {name: temporary, mountPath: /tmp}
            - {name: containers, mountPath: /etc/botpool, readOnly: true}
      volumes:
        # Nothing in it must last: the database has all that does.
        - {name: data, emptyDir: {}}
        - {name: temporary, emptyDir: {}}
        - {name: containers, configMap: {name: {{ $name }}-containers}}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if $values.affinity }}
      affinity:
        {{- toYaml $values.affinity | nindent 8 }}
      {{- else }}
      # A node that is lost should not take both.
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "botpool.labels" . | nindent 20 }}
      {{- end }}
---
apiVersion: policy/v1{{ if semverCompare "<1.21-0" .root.Capabilities.KubeVersion.Version }}beta1{{ end }}
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}-{{ .part }}
  labels:
    {{- include "botpool.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "botpool.labels" . | nindent 6 }}
{{- end }}
